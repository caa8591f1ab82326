//! Maps: one thread for each point; where points may add to one element, one thread for all of these, in their order.
//!
//! A map that does nothing but add to a table goes over [sorted points](SortedScatter) instead, so that threads share the work.

use super::body::Body;
use super::lower;
use super::lower::Lowering;
use super::scatter::SortedScatter;
use super::source::{Axes, Code, coordinates};
use kernfusion_codegen::CodegenError;
use kernfusion_codegen::analysis::axes_without_collisions;
use kernfusion_codegen::axes;
use kernfusion_ir::kernel::Kernel;

/// Threads of a block.
const THREADS: usize = 256;

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
        if let Some(scatter) = SortedScatter::of(&kernel) {
            return self.sorted_scatter(&scatter);
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
        walk(&mut body, &kernel, domain.outer, &|body| body.stores(&kernel.stores));
        self.launch_piece(THREADS, blocks, &body.code.finish())
    }
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
