//! Maps: one thread for each point; where points may add to one element, one thread for all of these, in their order.
//!
//! A map that does nothing but add to a table goes over [sorted points](SortedScatter) instead, so that threads share the work.

use super::body::{Body, Runs};
use super::lower;
use super::lower::Lowering;
use super::scatter::SortedScatter;
use super::source::{Axes, coordinates};
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
        let axes = Axes { names: vec![], extents: domain.axes.clone() };
        let mut body = Body::new(&kernel.region, axes, self.slots());
        let runs = runs(&kernel, &body, threads);
        let threads = threads / runs.length;
        let blocks = threads.div_ceil(THREADS);
        let code = &mut body.code;
        let number = if runs.length > 1 { "run" } else { "point" };
        code.line(format!("const int {number} = block * {THREADS} + threadIdx.x;"));
        code.line(format!("if ({number} >= {threads}) return;"));
        if runs.length > 1 {
            code.line(format!("const int point = run * {};", runs.length));
        }
        let mut names = coordinates(code, "point", 'i', &domain.axes[domain.outer_axes()]);
        if runs.length > 1 {
            let first = names.pop().expect("a run lies along an axis");
            names.push("along".into());
            body.axes.names = names;
            body.in_runs(runs, [], &kernel.stores, |body| {
                body.code.line(format!("const int along = {first} + at;"));
                body.stores(&kernel.stores);
            });
        } else {
            names.extend((0..domain.rows).map(|axis| format!("walk{axis}")));
            body.axes.names = names;
            walk(&mut body, &kernel, domain.outer, &|body| body.stores(&kernel.stores));
        }
        self.launch_piece(THREADS, blocks, &body.code.finish())
    }
}

/// Points with which a large GPU is occupied, a run to a thread: fewer are worth a thread each.
const MANY_POINTS: usize = 1 << 18;

/// The runs of points that a thread has: neighbours along the last axis, where memory has them so.
fn runs(kernel: &Kernel, body: &Body<'_>, points: usize) -> Runs {
    let domain = &kernel.domain;
    let Some(axis) = domain.outer_axes().next_back().filter(|_| domain.rows == 0) else {
        return Runs::SINGLE;
    };
    let divides =
        |length: &usize| domain.axes[axis].is_multiple_of(*length) && points / length >= MANY_POINTS;
    let Some(most) = [8, 4, 2].into_iter().find(divides) else { return Runs::SINGLE };
    let stores: Vec<_> = kernel.stores.iter().collect();
    Runs::of(body.region, &stores, &body.axes, body.slots, axis, most)
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
