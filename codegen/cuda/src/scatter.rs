//! Scatter-add: a thread for all points that add to one element, which adds in the order of the points.
//!
//! ```text
//! points that share a position of the table      0 1 2 3 4 at positions 7 2 7 7 2
//! sorted by position, equal ones in their order  1 4 0 2 3
//! where the run that begins here ends            2 · 5 · ·
//! ```
//!
//! The first launch sorts. The place of a point is the number of points that come before it, so a warp compares each with all: that takes as many
//! comparisons as points squared, 0.2 ms on paper for the 16,384 tokens of a batch, and no step waits for another. The second launch has a block for
//! each place, and those that begin a run add it up in a register.

use super::body::Body;
use super::lower::{self, Lowering};
use super::source::{
    Axes, Code, constant, coordinates, is_narrow, memory_type, narrowed, register_type, sum_type, value_name,
};
use kernfusion_codegen::CodegenError;
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{BufferId, Index, Indirect, Kernel, Store, StoreMode};

/// Threads of a block.
const THREADS: usize = 256;
/// Points that a block sorts, one for each warp.
const SORTED: usize = THREADS / 32;
/// The most points that are sorted. On an H200, by the model, 2¹⁴ take 0.16 ms, and four times as long if twice as many; a thread that walks them takes
/// 3.8 ms, and twice as long. So walking is quicker from 2¹⁸ to 2¹⁹ on.
const MOST_SORTED: usize = 1 << 18;

/// A scatter-add over sorted points.
pub(super) struct SortedScatter<'a> {
    kernel: &'a Kernel,
    store: &'a Store,
    /// Where in the table a point adds.
    position: Indirect,
    /// How many points share a thread's elements.
    points: usize,
}

impl<'a> SortedScatter<'a> {
    /// A map, if it does nothing but add at one run-time position of a table, which is the same for all points but those of the walked axes
    /// (`rows`).
    pub(super) fn of(kernel: &'a Kernel) -> Option<Self> {
        let domain = &kernel.domain;
        let [store] = &kernel.stores[..] else { return None };
        let [position] = store.index.indirect[..] else { return None };
        let points = domain.extent(domain.row_axes());
        let is_shared = !kernel.region.varies(position.value, domain.outer_axes(), domain);
        let is_direct = |axis| domain.axes[axis] > 1 && store.index.strides[axis] != 0;
        let sorts = store.mode == StoreMode::Add
            && (2..=MOST_SORTED).contains(&points)
            && is_shared
            && !domain.row_axes().any(is_direct);
        sorts.then_some(SortedScatter { kernel, store, position, points })
    }

    /// A body that begins with some code, in which the coordinates of a thread's element are known by these names.
    fn body<'b>(&self, lowering: &'b Lowering<'_>, code: Code, element: &[String]) -> Body<'b>
    where
        'a: 'b,
    {
        let Kernel { domain, region, .. } = self.kernel;
        let walked = vec![String::new(); domain.rows];
        let axes = Axes { names: [element, &walked].concat(), extents: domain.axes.clone() };
        let mut body = Body::new(region, axes, lowering.slots());
        body.code = code;
        body
    }

    /// In a block: names the coordinates of the point with this number.
    fn enter_point(&self, body: &mut Body<'_>, number: &str) {
        let domain = &self.kernel.domain;
        body.code.line(format!("const int walked = {number};"));
        let walked = coordinates(&mut body.code, "walked", 'w', &domain.axes[domain.row_axes()]);
        body.axes.names.splice(domain.row_axes(), walked);
    }

    /// In a block: sets what is named to where in the table the point with this number adds.
    fn find_position(&self, body: &mut Body<'_>, number: &str, named: &str) {
        self.enter_point(body, number);
        let Indirect { value, limit, .. } = self.position;
        body.need([value]);
        body.code.line(format!("{named} = clamped({}, {limit});", value_name(value)));
    }
}

impl Lowering<'_> {
    /// Both launches.
    pub(super) fn sorted_scatter(&mut self, scatter: &SortedScatter<'_>) -> Result<(), CodegenError> {
        let order = self.scratch("order", DType::I32, scatter.points)?;
        let ends = self.scratch("ends", DType::I32, scatter.points)?;
        self.sort(scatter, [order, ends])?;
        self.add_runs(scatter, [order, ends])
    }

    /// A warp for each point, which finds the point's place, and where its run ends if it begins one.
    fn sort(
        &mut self,
        scatter: &SortedScatter<'_>,
        [order, ends]: [BufferId; 2],
    ) -> Result<(), CodegenError> {
        let points = scatter.points;
        let unknown = vec!["0".to_owned(); scatter.kernel.domain.outer];
        let mut code = Code::default();
        code.line(format!("const int point = blockIdx.x * {SORTED} + threadIdx.x / WARP;"));
        code.line(format!("if (point >= {points}) return;"));
        let mut body = scatter.body(self, code, &unknown);
        body.code.line("int position;");
        body.block("", |body| scatter.find_position(body, "point", "position"));
        body.code.line("int below = 0, equal = 0, earlier = 0;");
        body.block(
            format!("for (int other = threadIdx.x % WARP; other < {points}; other += WARP)"),
            |body| {
                scatter.find_position(body, "other", "const int found");
                body.code.line("below += found < position;");
                body.code.line("equal += found == position;");
                body.code.line("earlier += found == position && other < point;");
            },
        );
        let [order, ends] = [order, ends].map(|buffer| self.slots()[buffer.0 as usize].write());
        for count in ["below", "equal", "earlier"] {
            body.code.line(format!("{count} = reduce_warp<Sum>({count});"));
        }
        body.code.line("if (threadIdx.x % WARP != 0) return;");
        body.code.line("const int place = below + earlier;");
        body.code.line(format!("{order}[place] = point;"));
        body.code.line(format!("{ends}[place] = earlier == 0 ? below + equal : 0;"));
        let text = body.code.finish();
        self.launch("sort", THREADS, [points.div_ceil(SORTED), 1, 1], text)?;
        Ok(())
    }

    /// A block for each place of the order and some of the elements there: the sums of the run that begins at that place.
    fn add_runs(
        &mut self,
        scatter: &SortedScatter<'_>,
        [order, ends]: [BufferId; 2],
    ) -> Result<(), CodegenError> {
        let SortedScatter { kernel, store, position, points } = *scatter;
        let domain = &kernel.domain;
        let elements = lower::count(self, domain.extent(domain.outer_axes()))?;
        let [order, ends] = [order, ends].map(|buffer| self.slots()[buffer.0 as usize].read().to_owned());
        let slot = &self.slots()[store.buffer.0 as usize];
        let (dtype, sum_dtype, value) = (slot.dtype, sum_type(slot.dtype), value_name(store.value));
        let mut code = Code::default();
        code.line("const int first = blockIdx.y;");
        code.line(format!("const int end = {ends}[first];"));
        code.line(format!("const int element = blockIdx.x * {THREADS} + threadIdx.x;"));
        code.line(format!("if (end == 0 || element >= {elements}) return;"));
        let outer = coordinates(&mut code, "element", 'e', &domain.axes[domain.outer_axes()]);
        let mut body = scatter.body(self, code, &outer);
        body.code.line("int position;");
        body.block("", |body| scatter.find_position(body, &format!("{order}[first]"), "position"));
        body.code.line(format!("{} sum = {};", register_type(sum_dtype), constant(0.0, sum_dtype)));
        body.block("for (int place = first; place < end; place++)", |body| {
            scatter.enter_point(body, &format!("{order}[place]"));
            body.need([store.value]);
            let added = format!("sum + {value}");
            let rounded = format!("round_to<{}>({added})", memory_type(dtype));
            body.code.line(format!("sum = {};", if is_narrow(dtype) { rounded } else { added }));
        });
        let mut axes = body.axes.clone();
        axes.names.push("position".into());
        axes.extents.push(position.limit);
        let mut index = Index { indirect: vec![], ..store.index.clone() };
        index.strides.push(position.stride);
        body.code.line(format!("{}[{}] = {};", slot.write(), axes.affine(&index), narrowed("sum", dtype)));
        let text = body.code.finish();
        self.launch("", THREADS, [elements.div_ceil(THREADS), points, 1], text)?;
        Ok(())
    }
}
