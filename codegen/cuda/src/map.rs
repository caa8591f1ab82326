//! Maps: one thread for each point; where points may add to one element, one thread for all of these, in their order.
//!
//! A scatter-add into a short table has an owner for each of the table's elements instead, which goes over the indices and
//! adds in a register what is its own: reading indices costs little, and nothing waits for memory that it has written.

use super::body::Body;
use super::lower;
use super::lower::Lowering;
use super::source::{
    Axes, Code, constant, coordinates, is_narrow, memory_type, narrowed, register_type, sum_type, value_name,
};
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::analysis::axes_without_collisions;
use kernfusion_codegen::axes;
use kernfusion_ir::kernel::{Index, Indirect, Kernel, Store, StoreMode};

/// Threads of a block.
const THREADS: usize = 256;
/// The longest table whose elements look for what is theirs.
const OWNERS: usize = 4096;

impl Lowering<'_> {
    /// A map. Axes on which no two points meet come first, in the order of the first store's memory; threads walk the
    /// others.
    pub(super) fn map(&mut self, kernel: &Kernel) -> Result<(), CodegenError> {
        let safe = axes_without_collisions(kernel);
        let (mut own, walked): (Vec<_>, Vec<_>) = (0..kernel.domain.axes.len()).partition(|&axis| safe[axis]);
        let order = |axis: &usize| kernel.stores.first().map(|store| -store.index.strides[*axis].abs());
        own.sort_by_key(order);
        let kernel = axes::regrouped(kernel, [own, walked, vec![]]);
        let domain = &kernel.domain;
        let threads = lower::count(self, domain.extent(domain.outer_axes()))?;
        if threads == 0 {
            return Ok(());
        }
        let mut code = Code::default();
        code.line(format!("const int point = block * {THREADS} + threadIdx.x;"));
        code.line(format!("if (point >= {threads}) return;"));
        let mut names = coordinates(&mut code, "point", 'i', &domain.axes[domain.outer_axes()]);
        names.extend((0..domain.rows).map(|axis| format!("walk{axis}")));
        let axes = Axes { names, extents: domain.axes.clone() };
        let mut body = Body::new(&kernel.region, axes, self.slots());
        body.code = code;
        let blocks = threads.div_ceil(THREADS);
        match owned(&kernel) {
            Some((store, term)) => {
                self.add_owned(&mut body, &kernel, store, term);
                let text = format!("const int block = blockIdx.x;\n{}", body.code.finish());
                self.launch("", THREADS, [blocks, term.limit, 1], text)?;
            }
            None => {
                walk(&mut body, &kernel, domain.outer, &|body| body.stores(&kernel.stores));
                self.launch_piece(THREADS, blocks, &body.code.finish())?;
            }
        }
        Ok(())
    }

    /// The sum of what the walked points add to the element of this block's owner.
    fn add_owned(&self, body: &mut Body<'_>, kernel: &Kernel, store: &Store, term: Indirect) {
        let slot = &self.slots()[store.buffer.0 as usize];
        let (dtype, value) = (slot.dtype, value_name(store.value));
        let sum = sum_type(dtype);
        body.code.line("const int owner = blockIdx.y;");
        body.code.line(format!("{} sum = {};", register_type(sum), constant(0.0, sum)));
        walk(body, kernel, kernel.domain.outer, &|body| {
            body.need([term.value]);
            let at = format!("clamped({}, {})", value_name(term.value), term.limit);
            body.code.line(format!("if ({at} != owner) continue;"));
            body.need([store.value]);
            let added = if is_narrow(dtype) {
                format!("round_to<{}>(sum + {value})", memory_type(dtype))
            } else {
                format!("sum + {value}")
            };
            body.code.line(format!("sum = {added};"));
        });
        let mut axes = body.axes.clone();
        axes.names.push("owner".into());
        axes.extents.push(term.limit);
        let mut index = Index { indirect: vec![], ..store.index.clone() };
        index.strides.push(term.stride);
        body.code.line(format!("{}[{}] = {};", slot.write(), axes.affine(&index), narrowed("sum", dtype)));
    }
}

/// The only store of a kernel that adds at one run-time position of a short table.
fn owned(kernel: &Kernel) -> Option<(&Store, Indirect)> {
    let [store] = &kernel.stores[..] else { return None };
    let [term] = store.index.indirect[..] else { return None };
    let walks = kernel.domain.rows > 0
        && kernel.domain.axes[kernel.domain.row_axes()].iter().all(|&extent| extent > 0);
    (store.mode == StoreMode::Add && walks && term.limit <= OWNERS).then_some((store, term))
}

/// Loops over the axes from `axis` on.
fn walk(body: &mut Body<'_>, kernel: &Kernel, axis: usize, inside: &dyn Fn(&mut Body<'_>)) {
    let Some(extent) = kernel.domain.axes.get(axis) else {
        inside(body);
        return;
    };
    let name = body.axes.names[axis].clone();
    body.block(format!("for (int {name} = 0; {name} < {extent}; {name}++)"), |body| {
        walk(body, kernel, axis + 1, inside);
    });
}
