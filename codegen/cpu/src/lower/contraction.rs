//! Contractions: operands for the driver of matrix products, and what becomes of the entries.
//!
//! * One product stored as it is goes straight into its buffer.
//! * One product under an elementwise region: the region becomes a function on finished tiles ([`super::tile`]). If rows are reduced,
//!   tiles have whole rows; sums over the rows are made for each strip of rows, and added up by a second launch.
//! * Anything else (several products, longer rows, `f64` and integers): each product goes into a
//!   temporary, and the region runs over the temporaries as an ordinary map or reduction.
//!
//! An operand that is more than a load is computed while it is packed ([`super::prologue`]), or into a temporary first.

use super::normalise::{dependence, regroup};
use super::prologue::Side;
use super::reduce::Accumulated;
use super::row::Row;
use super::wide::Vectors;
use super::{LaunchKind, Lowering, schedule, tile};
use kernfusion_codegen::analysis::{common_stride, indices_mut, reduces, scatters};
use kernfusion_codegen::{CodegenError, HalfBytes, half_bytes};
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{
    BufferId, Contraction, Direction, Domain, Form, Index, Instr, InstrKind, Kernel, Operand, Product,
    Region, Scalar, Store, StoreMode,
};
use kernfusion_runtime::gemm::{
    self, Axis, Element, GenericContraction, Layout, Number, STREAMS, ScaleType, TILE_COLUMNS, Tiles,
};
use kernfusion_runtime::product::{ComputedFactor, Divided, MatrixLookup, Method, ProductStep, SlotOffset};
use std::ops::Range;

/// Columns of a product at most whose rows are reduced in tiles.
const WHOLE_ROW: usize = 2048;
/// Rows of a product for which there is code that reads one operand as it lies, and no packing.
const FEWEST_ROWS: usize = 9;

/// An operand in memory.
pub(super) struct Factor {
    pub(super) slot: usize,
    /// The element type in memory.
    pub(super) dtype: DType,
    /// Whether all its values are exact in `bf16`.
    pub(super) is_bf16: bool,
    /// Whether it is read as the bytes that it is.
    pub(super) is_bytes: bool,
    /// Over the kernel's axes and those of k (or of p).
    pub(super) index: Index,
    /// Which matrix of a table it is, if that is known at run time only.
    pub(super) choice: Option<MatrixLookup>,
    /// Where its scales lie, and their type, if it is half bytes.
    pub(super) scales: Option<(SlotOffset, ScaleType)>,
}

impl Lowering<'_> {
    pub(super) fn contraction(
        &mut self,
        kernel: &Kernel,
        contraction: &Contraction,
    ) -> Result<(), CodegenError> {
        if !contraction.consumers.is_empty() {
            return self.chain(kernel, contraction);
        }
        let along = rows_along_memory(kernel);
        match along.as_ref().map(|along| (along, &along.form)) {
            Some((along, Form::Contraction(contraction))) => self.contraction_in_order(along, contraction),
            _ => self.contraction_in_order(kernel, contraction),
        }
    }

    /// A contraction whose rows are in the order in which they are walked.
    fn contraction_in_order(
        &mut self,
        kernel: &Kernel,
        contraction: &Contraction,
    ) -> Result<(), CodegenError> {
        let products = &contraction.products;
        if runs_in_tiles(kernel) {
            return match transposed(kernel).filter(|_| !is_reduced(kernel)) {
                Some((kernel, product)) => self.tiled(&kernel, &product),
                None => self.tiled(kernel, &products[0]),
            };
        }
        if let [product] = &products[..]
            && let Some(step) = self.accumulation(kernel, product)?
        {
            self.program.steps.push(step);
            return Ok(());
        }
        let mut rest = kernel.clone();
        for (i, product) in products.iter().enumerate() {
            let slot = self.product_to_temporary(kernel, product)?;
            let lanes = self.facts.dtypes[slot];
            let strides = kernfusion_ir::strides(&kernel.domain.axes).into_iter().map(|s| s as i64).collect();
            replace_producer(&mut rest, i, slot, lanes, Index { strides, ..Index::default() });
        }
        rest.form = if is_reduced(kernel) { Form::Reduce } else { Form::Map };
        self.rows(&rest)
    }

    /// One product whose region runs on tiles.
    fn tiled(&mut self, kernel: &Kernel, product: &Product) -> Result<(), CodegenError> {
        let (a, of_a) = self.packed(kernel, product, Side::A)?;
        let (b, of_b) = self.packed(kernel, product, Side::B)?;
        let domain = &kernel.domain;
        let merged = on_results(kernel);
        let mut work = self.work(domain, product, &a, &b);
        work.tiles = tiles(kernel);
        let strip = gemm::register_rows(self.isa, work.precision);
        let plain = self.plain_store(kernel);
        let (target, epilogue) = match plain.and_then(|store| direct(store, domain)) {
            Some((slot, offset, batch, ldc)) => {
                work.output = gemm::Output::Direct { batch, ldc, adds: false };
                (Some(SlotOffset { slot, offset }), None)
            }
            None => (None, Some(self.epilogue(&merged, strip)?)),
        };
        let (epilogue, accumulated) =
            epilogue.map_or((None, None), |(function, sums)| (Some(function), sums));
        let (mut reads, mut writes) = ([None; STREAMS], [None; STREAMS]);
        if epilogue.is_some() {
            let touched = |buffer: BufferId, index: &Index| {
                let slot = buffer.0 as usize;
                tiled(index, domain, slot, self.facts.dtypes[slot].size())
            };
            let read = |instr: &Instr| match &instr.kind {
                InstrKind::Load { buffer, index, guard } if guard.is_empty() => touched(*buffer, index),
                _ => None,
            };
            let read = kernel.region.instrs.iter().filter_map(read);
            reads.iter_mut().zip(read).for_each(|(place, matrix)| *place = Some(matrix));
            let written = kernel.stores.iter().filter_map(|store| touched(store.buffer, &store.index));
            writes.iter_mut().zip(written).for_each(|(place, matrix)| *place = Some(matrix));
        }
        let (places, choices) = ([place(&a), place(&b)], [a.choice, b.choice, None]);
        let ([a, b], scales) = (places, b.scales.map(|(place, _)| place));
        let (work, prologues) = (Method::Driver(work), [of_a, of_b]);
        let step = ProductStep { work, a, b, scales, choices, target, prologues, epilogue, reads, writes };
        self.program.steps.push(LaunchKind::Product(Box::new(step)));
        accumulated.map_or(Ok(()), |accumulated| self.combine(&merged, &accumulated))
    }

    /// The only store, if it stores the product as it is and in `f32`.
    fn plain_store<'k>(&self, kernel: &'k Kernel) -> Option<&'k Store> {
        self.only_store(kernel).filter(|store| store.index.indirect.is_empty())
    }

    /// The only store, if it stores or adds the product as it is and in `f32`.
    fn only_store<'k>(&self, kernel: &'k Kernel) -> Option<&'k Store> {
        let [store] = &kernel.stores[..] else { return None };
        let instr = kernel.region.instr(store.value);
        let plain = matches!(instr.kind, InstrKind::Producer(_)) && instr.dtype == DType::F32;
        plain.then_some(store)
    }

    /// A batch of products that the driver adds up to matrices that are chosen at run time.
    fn accumulation(
        &mut self,
        kernel: &Kernel,
        product: &Product,
    ) -> Result<Option<LaunchKind>, CodegenError> {
        let domain = &kernel.domain;
        let Some(store) = self.only_store(kernel).filter(|store| store.mode == StoreMode::Add) else {
            return Ok(None);
        };
        let Some(choice) = choice(&kernel.region, &store.index, domain) else { return Ok(None) };
        let Some((slot, offset, batch, ldc)) = direct(store, domain) else { return Ok(None) };
        let (a, b) = self.factors(kernel, product)?;
        let output = gemm::Output::Direct { batch, ldc, adds: true };
        // Whole numbers are not added to floats.
        let work = Method::Driver(gemm::Contraction { output, ..self.floating(domain, product, &a, &b) });
        self.program.steps.push(LaunchKind::Clear { slot, bytes: self.facts.sizes[slot] });
        Ok(Some(plain_step(work, a, b, Some(SlotOffset { slot, offset }), Some(choice))))
    }

    /// The function that runs the region on a tile, and the running results that it leaves for each strip of this many rows where rows
    /// are reduced.
    fn epilogue(
        &mut self,
        kernel: &Kernel,
        strip: usize,
    ) -> Result<(usize, Option<Accumulated>), CodegenError> {
        let strips = kernel.domain.extent(kernel.domain.row_axes()).div_ceil(strip);
        let accumulated = match reduces(&kernel.region, Direction::Rows) {
            true => Some(self.accumulated(kernel, strips)?),
            false => None,
        };
        let (kernel, writes) = match &accumulated {
            Some(Accumulated { kernel, writes, .. }) => (kernel, writes.clone()),
            None => (kernel, self.writes(kernel)),
        };
        let axes = kernel.domain.axes.clone();
        let fixed = axes.len() - 1;
        let row = Row::new(kernel.region.clone(), writes, axes, fixed, self.facts.clobbered.clone());
        self.check_row(&row)?;
        let schedule = schedule::schedule(&row, Vectors::of(self.isa));
        let capacity = match reduces(&kernel.region, Direction::Columns) {
            true => row.axes[row.inner()].next_multiple_of(16),
            false => tile::capacity(&row),
        };
        self.needs_zeros(&row, capacity);
        let slots = self.facts.dtypes.len();
        let name = self.facts.name.clone();
        let place = tile::Place { scratch: None, capacity, strip: accumulated.is_some().then_some(strip) };
        let function = tile::build(self.functions, &name, &row, &schedule, &kernel.domain, slots, &place)?;
        Ok((function, accumulated))
    }

    /// The product as the driver knows it, with results handed out in tiles.
    fn work(&self, domain: &Domain, product: &Product, a: &Factor, b: &Factor) -> gemm::Contraction {
        let work = self.floating(domain, product, a, b);
        match a.is_bytes && b.is_bytes && work.k <= gemm::MOST_TERMS_OF_BYTES {
            true => gemm::Contraction { precision: gemm::Precision::Int8, ..work },
            false => work,
        }
    }

    /// The same, of bytes as of floats.
    fn floating(&self, domain: &Domain, product: &Product, a: &Factor, b: &Factor) -> gemm::Contraction {
        let operand = |factor: &Factor, outer: Range<usize>| {
            let layout = layout(factor, domain, outer, &product.k);
            let (element, k) = match factor.scales {
                None => (element(factor.dtype), layout.k),
                Some((_, scale)) => {
                    let k = Axis::Strided { len: product.k.iter().product(), stride: 1 };
                    (Element::HalfByte(scale), k)
                }
            };
            gemm::Operand { element, outer: layout.outer, k, batch: layout.batch }
        };
        let is_bf16 = a.is_bf16 && b.is_bf16;
        let mut work = gemm::Contraction {
            isa: self.isa,
            m: domain.extent(domain.row_axes()),
            n: domain.extent(domain.column_axes()),
            k: product.k.iter().product(),
            batch: domain.extent(domain.outer_axes()),
            a: operand(a, domain.row_axes()),
            b: operand(b, domain.column_axes()),
            output: gemm::Output::Tile,
            precision: self.precision(is_bf16),
            tiles: Tiles::Any,
            prologues: [None; 2],
            epilogue: None,
        };
        let asked = self.products.on(self.isa, is_bf16);
        if asked == gemm::Precision::Fixed && work.gains_by_fixed_point() {
            work.precision = asked;
        }
        work
    }

    /// Computes a product into a temporary, row-major over the domain; returns its slot.
    fn product_to_temporary(&mut self, kernel: &Kernel, product: &Product) -> Result<usize, CodegenError> {
        let domain = &kernel.domain;
        let lanes = match product.dtype {
            DType::BF16 | DType::F16 => DType::F32,
            dtype => dtype,
        };
        let (a, b) = self.factors(kernel, product)?;
        let slot = self.temporary(lanes, domain.points());
        let work = match lanes {
            DType::F32 => {
                let (m, n) = (domain.extent(domain.row_axes()), domain.extent(domain.column_axes()));
                let stride = (m * n) as isize;
                let batch = Axis::Strided { len: domain.extent(domain.outer_axes()), stride };
                let output = gemm::Output::Direct { batch, ldc: n, adds: false };
                Method::Driver(gemm::Contraction { output, ..self.work(domain, product, &a, &b) })
            }
            DType::F64 | DType::I32 | DType::U32 => {
                let number = match lanes {
                    DType::F64 => Number::F64,
                    DType::I32 => Number::I32,
                    _ => Number::U32,
                };
                let a = layout(&a, domain, domain.row_axes(), &product.k);
                let b = layout(&b, domain, domain.column_axes(), &product.k);
                Method::Generic(GenericContraction { number, a, b })
            }
            DType::BF16 | DType::F16 | DType::I8 | DType::Bool => {
                return Err(self.unsupported(&format!("a product of {}", product.dtype)));
            }
        };
        self.program.steps.push(plain_step(work, a, b, Some(SlotOffset { slot, offset: 0 }), None));
        Ok(slot)
    }

    /// An operand as the driver packs it: from memory, or with what computes it.
    fn packed(
        &mut self,
        kernel: &Kernel,
        product: &Product,
        side: Side,
    ) -> Result<(Factor, Option<ComputedFactor>), CodegenError> {
        let (operand, partner) = match side {
            Side::A => (&product.a, &product.b),
            Side::B => (&product.b, &product.a),
        };
        let partner = partner.region.instr(partner.value).dtype;
        if let Some(factor) = plain_factor(operand, partner, &kernel.domain) {
            return Ok((factor, None));
        }
        if side == Side::B
            && let Some(factor) = packed_factor(operand, &kernel.domain, &product.k)
        {
            return Ok((factor, None));
        }
        if let Some((computed, factor)) = self.prologue(kernel, product, side)? {
            return Ok((factor, Some(computed)));
        }
        Ok((self.factor(&kernel.domain, &product.k, operand, partner)?, None))
    }

    fn factors(&mut self, kernel: &Kernel, product: &Product) -> Result<(Factor, Factor), CodegenError> {
        let dtype = |operand: &Operand| operand.region.instr(operand.value).dtype;
        let by_driver = matches!(product.dtype, DType::F32 | DType::BF16 | DType::F16);
        let mut factor = |operand: &Operand, partner: &Operand| {
            let chosen = plain_factor(operand, dtype(partner), &kernel.domain).filter(|_| by_driver);
            chosen.map_or_else(|| self.factor(&kernel.domain, &product.k, operand, dtype(partner)), Ok)
        };
        Ok((factor(&product.a, &product.b)?, factor(&product.b, &product.a)?))
    }

    /// An operand in memory: where it is loaded from, or a temporary that it is computed into.
    /// It has the domain's axes and these further ones; its partner has values of that type.
    pub(super) fn factor(
        &mut self,
        domain: &Domain,
        further: &[usize],
        operand: &Operand,
        partner: DType,
    ) -> Result<Factor, CodegenError> {
        if let Some(factor) = plain_factor(operand, partner, domain).filter(|factor| factor.choice.is_none())
        {
            return Ok(factor);
        }
        let extents = [&domain.axes[..], further].concat();
        let depends = &dependence(&operand.region, extents.len())[operand.value.0 as usize];
        let kept: Vec<usize> = (0..extents.len()).filter(|&axis| depends[axis]).collect();
        let axes: Vec<_> = kept.iter().map(|&axis| extents[axis]).collect();
        let dtype = operand.region.instr(operand.value).dtype;
        let slot = self.temporary(dtype, axes.iter().product());
        let mut region = operand.region.clone();
        for index in region.instrs.iter_mut().flat_map(|instr| indices_mut(&mut instr.kind)) {
            index.strides = kept.iter().map(|&axis| index.strides[axis]).collect();
        }
        let strides = kernfusion_ir::strides(&axes);
        let dense = Index { strides: strides.iter().map(|&s| s as i64).collect(), ..Index::default() };
        let buffer = BufferId(slot as u32);
        let store = Store { value: operand.value, buffer, index: dense, mode: StoreMode::Set };
        self.rows(&Kernel {
            name: String::new(),
            form: Form::Map,
            domain: Domain::flat(axes),
            region,
            stores: vec![store],
            covers: vec![],
        })?;
        let mut index = Index::constant(extents.len(), 0);
        kept.iter().zip(strides).for_each(|(&axis, stride)| index.strides[axis] = stride as i64);
        let is_bf16 = dtype == DType::BF16;
        Ok(Factor { slot, dtype, is_bf16, is_bytes: false, index, choice: None, scales: None })
    }
}

/// Elements side by side from which on rows are better walked along them.
const RUN: usize = 16;

/// The kernel with the axis of its rows last along which operands lie in memory, where they lie neither along k nor along the last axis:
/// channels of an image of which columns are multiplied, for instance. Packing takes them as they lie then.
fn rows_along_memory(kernel: &Kernel) -> Option<Kernel> {
    let domain = &kernel.domain;
    if is_reduced(kernel) || scatters(kernel) || domain.row_axes().len() < 2 {
        return None;
    }
    let loads = kernel.products().iter().map(|product| match &product.a.plain()?.kind {
        InstrKind::Load { index, .. } => Some(index),
        _ => None,
    });
    let loads = loads.collect::<Option<Vec<_>>>()?;
    let lies_along = |axis: usize| loads.iter().all(|index| index.strides[axis] == 1);
    let k = domain.axes.len()..;
    let along_k = loads.iter().any(|index| index.strides[k.clone()].contains(&1));
    let last = domain.row_axes().end - 1;
    if along_k || lies_along(last) {
        return None;
    }
    let axis = domain.row_axes().find(|&axis| domain.axes[axis] >= RUN && lies_along(axis))?;
    let others = domain.row_axes().filter(|&other| other != axis);
    let rows = others.chain([axis]).collect();
    Some(regroup(kernel, [domain.outer_axes().collect(), rows, domain.column_axes().collect()]))
}

/// Whether a kernel's region works on finished tiles of one product of floats. Where its rows or columns are reduced, a row of a tile
/// must be one row of the row program, and no longer than scratch on the stack.
pub(super) fn runs_in_tiles(kernel: &Kernel) -> bool {
    let [product] = kernel.products() else { return false };
    let domain = &kernel.domain;
    let reducible = || {
        let columns = on_results(kernel).domain.column_axes().len();
        let is_short = domain.extent(domain.column_axes()) <= WHOLE_ROW;
        columns == 1 && (is_short || !reduces(&kernel.region, Direction::Columns))
    };
    matches!(product.dtype, DType::F32 | DType::BF16 | DType::F16)
        && kernel.consumers().is_empty()
        && !scatters(kernel)
        && kernel.region.instrs.iter().all(|instr| instr.dtype != DType::F64)
        && (!is_reduced(kernel) || domain.points() > 0 && reducible())
}

/// A contraction's region as a kernel on results. Axes are merged as the region walks them, whatever operands do: a window's columns are read
/// in runs, and an optimizer's parameters are one row.
fn on_results(kernel: &Kernel) -> Kernel {
    let domain = &kernel.domain;
    let groups = [domain.outer_axes(), domain.row_axes(), domain.column_axes()];
    let region = Kernel {
        name: kernel.name.clone(),
        form: Form::Reduce,
        domain: domain.clone(),
        region: kernel.region.clone(),
        stores: kernel.stores.clone(),
        covers: vec![],
    };
    regroup(&region, groups.map(Iterator::collect))
}

/// Why rows or columns of a product should be reduced by another kernel, if they should.
pub(super) fn refused_reduction(kernel: &Kernel) -> Option<&'static str> {
    let [product] = kernel.products() else { return None };
    if !kernel.consumers().is_empty() || !is_reduced(kernel) {
        return None;
    }
    if !runs_in_tiles(kernel) {
        return Some("on the CPU, rows of a product are reduced where whole ones fit into a tile");
    }
    let has_few_rows = is_of_few_rows(&kernel.domain, lies_along_k(&kernel.domain, product));
    has_few_rows.then_some("on the CPU, products of few rows are not reduced")
}

/// Whether a product has so few rows, or one column, that there are ways for it which know neither prologues nor reductions.
pub(super) fn is_of_few_rows(domain: &Domain, b_along_k: bool) -> bool {
    let [rows, columns] = [domain.row_axes(), domain.column_axes()].map(|axes| domain.extent(axes));
    rows < FEWEST_ROWS || columns == 1 || rows <= TILE_COLUMNS && b_along_k
}

/// Whether the second operand of a product lies in memory along k.
pub(super) fn lies_along_k(domain: &Domain, product: &Product) -> bool {
    match product.b.plain().map(|instr| &instr.kind) {
        Some(InstrKind::Load { index, .. }) => index.strides.last() == Some(&1),
        _ => packed_factor(&product.b, domain, &product.k).is_some(),
    }
}

/// What tiles a region needs.
fn tiles(kernel: &Kernel) -> Tiles {
    let reduced = |direction| reduces(&kernel.region, direction);
    match (reduced(Direction::Columns), reduced(Direction::Rows)) {
        (true, _) => Tiles::Rows,
        (false, true) => Tiles::Strips,
        (false, false) => Tiles::Any,
    }
}

fn is_reduced(kernel: &Kernel) -> bool {
    [Direction::Columns, Direction::Rows].iter().any(|&direction| reduces(&kernel.region, direction))
}

/// A product of many rows with one column, as one of one row: the driver has a way of its own for few rows. Each entry is the
/// same sum.
fn transposed(kernel: &Kernel) -> Option<(Kernel, Product)> {
    let domain = &kernel.domain;
    let Form::Contraction(contraction) = &kernel.form else { return None };
    if domain.extent(domain.column_axes()) != 1 || domain.extent(domain.row_axes()) == 1 {
        return None;
    }
    let product = &contraction.products[0];
    let product = Product { a: product.b.clone(), b: product.a.clone(), ..product.clone() };
    // Axes of rows come before those of columns, so they keep their places.
    let domain = Domain { rows: 0, ..domain.clone() };
    Some((Kernel { domain, ..kernel.clone() }, product))
}

/// A load, or a load that is converted in a way that packing does anyway: to `f32`, or from `f32` to `bf16` where the
/// partner is `bf16`, too.
fn plain_factor(operand: &Operand, partner: DType, domain: &Domain) -> Option<Factor> {
    let instr = operand.region.instr(operand.value);
    let load = match instr.kind {
        InstrKind::Cast(load) => load,
        _ => operand.value,
    };
    let loaded = operand.region.instr(load);
    let InstrKind::Load { buffer, index, guard } = &loaded.kind else { return None };
    let packed = match (loaded.dtype, instr.dtype) {
        (from, to) if from == to => true,
        (DType::BF16 | DType::F16 | DType::I8, DType::F32) => true,
        (DType::I8, DType::BF16) => true,
        (DType::F32, DType::BF16) => partner == DType::BF16,
        _ => false,
    };
    let is_bf16 = [loaded.dtype, instr.dtype].contains(&DType::BF16);
    let choice = choice(&operand.region, index, domain);
    let plain = packed && guard.is_empty() && (index.indirect.is_empty() || choice.is_some());
    let (slot, dtype, index) = (buffer.0 as usize, loaded.dtype, index.clone());
    plain.then_some(Factor {
        slot,
        dtype,
        is_bf16,
        is_bytes: dtype == DType::I8,
        index,
        choice,
        scales: None,
    })
}

/// Half bytes as they are kept, if an operand is unpacked from them.
pub(super) fn packed_factor(operand: &Operand, domain: &Domain, k: &[usize]) -> Option<Factor> {
    let HalfBytes { bytes: (bytes, index), scales: (scales, of_scales), scale } =
        half_bytes(operand, domain, k)?;
    let choice = choice(&operand.region, index, domain);
    let offset = of_scales.offset * scale.size() as i64;
    let scale = if scale == DType::F32 { ScaleType::F32 } else { ScaleType::Bf16 };
    let scales = Some((SlotOffset { slot: scales.0 as usize, offset }, scale));
    let is_bf16 = operand.region.instr(operand.value).dtype == DType::BF16;
    let is_matrix = index.indirect.is_empty() || choice.is_some();
    let (slot, index) = (bytes.0 as usize, index.clone());
    let is_bytes = false;
    is_matrix.then_some(Factor { slot, dtype: DType::I8, is_bf16, is_bytes, index, choice, scales })
}

/// The run-time term of an index map, if it is one and chooses a matrix for each of the batch.
fn choice(region: &Region, index: &Index, domain: &Domain) -> Option<MatrixLookup> {
    let [term] = &index.indirect[..] else { return None };
    let instr = region.instr(term.value);
    let InstrKind::Load { buffer, index, guard } = &instr.kind else { return None };
    let outer = domain.outer_axes();
    let of_batch = index.strides[outer.end..].iter().all(|&stride| stride == 0);
    let plain = guard.is_empty() && index.indirect.is_empty() && of_batch && instr.dtype == DType::I32;
    let mut places = axis(&domain.axes[outer.clone()], &index.strides[outer]);
    if index.offset != 0 {
        places = Axis::Table((0..places.len()).map(|at| places.at(at) + index.offset as isize).collect());
    }
    plain.then_some(MatrixLookup {
        slot: buffer.0 as usize,
        places,
        limit: term.limit,
        stride: term.stride as isize,
    })
}

/// A product that goes straight to its target.
fn plain_step(
    work: Method,
    a: Factor,
    b: Factor,
    target: Option<SlotOffset>,
    of_target: Option<MatrixLookup>,
) -> LaunchKind {
    let places = [place(&a), place(&b)];
    let ([a, b], choices) = (places, [a.choice, b.choice, of_target]);
    let (prologues, epilogue, reads, writes) = ([None; 2], None, [None; STREAMS], [None; STREAMS]);
    LaunchKind::Product(Box::new(ProductStep {
        work,
        a,
        b,
        scales: None,
        choices,
        target,
        prologues,
        epilogue,
        reads,
        writes,
    }))
}

fn place(factor: &Factor) -> SlotOffset {
    SlotOffset { slot: factor.slot, offset: factor.index.offset * factor.dtype.size() as i64 }
}

/// Where an operand's elements lie along its outer group, k and the batch.
fn layout(factor: &Factor, domain: &Domain, outer: Range<usize>, k: &[usize]) -> Layout {
    let strides = &factor.index.strides;
    let group = |axes: Range<usize>| axis(&domain.axes[axes.clone()], &strides[axes]);
    Layout {
        outer: group(outer),
        k: axis(k, &strides[domain.axes.len()..]),
        batch: group(domain.outer_axes()),
    }
}

/// What memory holds of a factor or a result of the driver.
pub(super) fn element(dtype: DType) -> Element {
    match dtype {
        DType::BF16 => Element::Bf16,
        DType::F16 => Element::F16,
        DType::I8 => Element::I8,
        _ => Element::F32,
    }
}

/// Several axes as one: strided if they are walked as one, else a table.
pub(super) fn axis(extents: &[usize], strides: &[i64]) -> Axis {
    let len = extents.iter().product();
    if let Some(stride) = common_stride(extents, strides) {
        return Axis::Strided { len, stride: stride as isize };
    }
    let mut table = vec![0];
    for (&extent, &stride) in extents.iter().zip(strides) {
        let step = |start: &isize| {
            let start = *start;
            (0..extent as isize).map(move |i| start + i * stride as isize)
        };
        table = table.iter().flat_map(step).collect();
    }
    Axis::Table(table.into())
}

/// An index as rows at a stride of consecutive columns, of elements of `size` bytes.
fn tiled(index: &Index, domain: &Domain, slot: usize, size: usize) -> Option<Divided> {
    let stride = |axes: Range<usize>| common_stride(&domain.axes[axes.clone()], &index.strides[axes]);
    let columns = domain.extent(domain.column_axes());
    let unit = stride(domain.column_axes())? == 1 || columns == 1;
    let (row, batch) = (stride(domain.row_axes())?, stride(domain.outer_axes())?);
    let fits = unit && index.indirect.is_empty() && row >= columns as i64;
    let bytes = |elements: i64| elements * size as i64;
    let (row, batch) = (bytes(row) as usize, bytes(batch) as isize);
    fits.then_some(Divided { slot, offset: bytes(index.offset), size, row, batch })
}

/// Slot, byte offset, batch axis and row stride of a store that the driver can do itself.
fn direct(store: &Store, domain: &Domain) -> Option<(usize, i64, Axis, usize)> {
    let strides = &store.index.strides;
    let group = |axes: Range<usize>| common_stride(&domain.axes[axes.clone()], &strides[axes]);
    let (m, n) = (domain.extent(domain.row_axes()), domain.extent(domain.column_axes()));
    let unit = n == 1 || group(domain.column_axes())? == 1;
    let row = if m == 1 { n as i64 } else { group(domain.row_axes())? };
    let outer = domain.outer_axes();
    let batch = axis(&domain.axes[outer.clone()], &strides[outer]);
    let slot = store.buffer.0 as usize;
    (unit && row >= n as i64).then_some((slot, store.index.offset * 4, batch, row as usize))
}

/// Makes the region load what a product left in a temporary, at this index of the domain.
pub(super) fn replace_producer(kernel: &mut Kernel, product: usize, slot: usize, lanes: DType, index: Index) {
    let load = InstrKind::Load { buffer: BufferId(slot as u32), index, guard: vec![] };
    let mut region = Region::default();
    // Values move, since a result narrower than the temporary needs a conversion after the load.
    let mut moved: Vec<Scalar> = vec![];
    for instr in &kernel.region.instrs {
        let value = if instr.kind == InstrKind::Producer(product) {
            let loaded = region.push(load.clone(), lanes);
            match instr.dtype == lanes {
                true => loaded,
                false => region.push(InstrKind::Cast(loaded), instr.dtype),
            }
        } else {
            let mut kind = instr.kind.clone();
            rename(&mut kind, &moved);
            region.push(kind, instr.dtype)
        };
        moved.push(value);
    }
    kernel.region = region;
    if let Form::Contraction(contraction) = &mut kernel.form {
        contraction.consumers.iter_mut().for_each(|c| c.value = moved[c.value.0 as usize]);
        contraction.inside.iter_mut().for_each(|condition| *condition = moved[condition.0 as usize]);
    }
    for store in &mut kernel.stores {
        store.value = moved[store.value.0 as usize];
        store.index.indirect.iter_mut().for_each(|term| term.value = moved[term.value.0 as usize]);
    }
}

/// Replaces the operands of an instruction.
fn rename(kind: &mut InstrKind, moved: &[Scalar]) {
    for index in indices_mut(kind) {
        index.indirect.iter_mut().for_each(|term| term.value = moved[term.value.0 as usize]);
    }
    let operands: Vec<&mut Scalar> = match kind {
        InstrKind::Unary(_, x) | InstrKind::Cast(x) | InstrKind::Reduce(_, _, x) => vec![x],
        InstrKind::Binary(_, x, y) | InstrKind::Compare(_, x, y) => vec![x, y],
        InstrKind::Select(c, x, y) => vec![c, x, y],
        InstrKind::Random { seed, step, .. } => vec![seed, step],
        InstrKind::Constant(_)
        | InstrKind::Coordinate(_)
        | InstrKind::Load { .. }
        | InstrKind::Producer(_)
        | InstrKind::InRange(_) => vec![],
    };
    operands.into_iter().for_each(|operand| *operand = moved[operand.0 as usize]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `c[r, j] = Σ a[r, k] b[k, j]` over rows of these axes, k of 11 and 7 columns; a lies as its strides say, those of k last.
    fn product(rows: &[usize], strides: &[i64]) -> Kernel {
        let operand = |strides: Vec<i64>, buffer| {
            let mut region = Region::default();
            let index = Index { strides, ..Index::default() };
            let load = InstrKind::Load { buffer: BufferId(buffer), index, guard: vec![] };
            let value = region.push(load, DType::F32);
            Operand { region, value }
        };
        let (last, of_rows) = strides.split_last().expect("k has one");
        let a = operand([of_rows, &[0, *last]].concat(), 1);
        let b = operand([vec![0; rows.len()], vec![1, 7]].concat(), 2);
        let mut region = Region::default();
        let value = region.push(InstrKind::Producer(0), DType::F32);
        let axes = [rows, &[7]].concat();
        let dense = kernfusion_ir::strides(&axes).into_iter().map(|stride| stride as i64).collect();
        let index = Index { strides: dense, ..Index::default() };
        let store = Store { value, buffer: BufferId(0), index, mode: StoreMode::Set };
        Kernel {
            name: String::new(),
            form: Form::Contraction(vec![Product { k: vec![11], a, b, dtype: DType::F32 }].into()),
            domain: Domain { axes, outer: 0, rows: rows.len() },
            region,
            stores: vec![store],
            covers: vec![],
        }
    }

    #[test]
    fn rows_are_walked_along_memory_where_k_is_not() {
        let axes = |kernel: Kernel| rows_along_memory(&kernel).map(|kernel| kernel.domain.axes);
        // x[n, k, w, c], multiplied as [n, c, w].
        assert_eq!(axes(product(&[2, 32, 5], &[1760, 1, 32, 160])), Some(vec![2, 5, 32, 7]));
        // Too few channels; memory along k; memory along the last axis.
        assert_eq!(axes(product(&[2, 8, 5], &[440, 1, 8, 40])), None);
        assert_eq!(axes(product(&[2, 32, 5], &[1760, 55, 11, 1])), None);
        assert_eq!(axes(product(&[2, 5, 32], &[1760, 32, 1, 160])), None);
    }
}
