//! Tiles of products: their sizes and types, the shared memory of their panels, and how many parts a tile's sums are divided into.

use super::Options;
use super::contraction::operand_type;
use super::lower::Lowering;
use super::source::{Code, memory_type, sum_type};
use kernfusion_ir::DType;
use kernfusion_ir::kernel::Kernel;

/// Rows and columns of tiles, the small one first. The widest one is for warpgroups alone: it takes all registers of a multiprocessor, and
/// fewest bytes for a product.
pub(super) const TILES: [[usize; 2]; 5] = [[64, 64], [128, 64], [64, 128], [128, 128], [128, 256]];
pub(super) const SMALL: [usize; 2] = TILES[0];
pub(super) const LARGE: [usize; 2] = TILES[3];
pub(super) const WIDE: [usize; 2] = TILES[4];
/// Threads of a tile, as the headers have them.
pub(super) const THREADS: usize = 256;
/// Bytes of a row of a panel, with its padding, as the headers have them, and of one for warpgroups.
const PANEL_ROW: [usize; 2] = [80, 128];
/// Stages of panels, one of which is read while the others are filled: at least and at most.
const STAGES: [usize; 2] = [2, 4];
/// Bytes of shared memory for panels: cards give a block at least 99 KiB, and 164 KiB to two that share a multiprocessor of an A100.
const SHARED_BYTES: usize = 80 << 10;
/// Those in chains, whose values take shared memory, too.
const SHARED_BYTES_IN_CHAIN: usize = 40 << 10;
/// Those of cards with warpgroups, for each of two blocks.
const SHARED_BYTES_OF_WARPGROUPS: usize = 113 << 10;
/// With this many large tiles, a large GPU is occupied.
pub(super) const MANY_TILES: usize = 120;
/// Blocks that a large GPU runs at once, two on each multiprocessor.
const MANY_BLOCKS: usize = 264;
/// Terms of a part of a sum at least: less work would not be worth the memory that parts go through.
const LEAST_TERMS: usize = 1024;
/// What writing and reading a part of a tile costs, in terms that are multiplied meanwhile: 8 bytes an entry at 4.8 TB/s beside 2 operations at
/// 600 TFLOP/s.
const TERMS_OF_PART: usize = 500;
const MOST_PARTS: usize = 16;
/// Numbers between rows of entries in shared memory: no tile of the headers has more.
const MOST_ENTRY_PADDING: usize = 16;

/// Rows of tiles in a band: blocks that run at once then read about as many rows of the first operand as of the second, which the second
/// cache keeps.
const BAND: usize = 16;

/// Writes where a block's tile begins in a grid of tiles: blocks take row after row or, where rows are long, band after band, each column by
/// column.
pub(super) fn place(code: &mut Code, [columns, rows]: [usize; 2], [down, along]: [usize; 2]) {
    if columns <= BAND || rows == 1 {
        code.line(format!("const int first_row = blockIdx.y * {down}, first_column = blockIdx.x * {along};"));
        return;
    }
    let band = BAND * columns;
    code.line(format!(
        "const int tile = blockIdx.y * {columns} + blockIdx.x, band = tile / {band} * {BAND};"
    ));
    code.line(format!("const int height = {rows} - band < {BAND} ? {rows} - band : {BAND};"));
    code.line(format!(
        "const int first_row = (band + tile % {band} % height) * {down}, first_column = tile % {band} / height * {along};"
    ));
}

/// The types of the tiles of a kernel's products, and the shared memory of their panels.
pub(super) struct Tiles {
    /// The type of each product's operands.
    types: Vec<DType>,
    /// Those without repetition: products of one type use one panel in turns.
    distinct: Vec<DType>,
    tf32: bool,
    /// Whether tiles of up to 128×128 fit into registers and shared memory.
    pub(super) may_be_large: bool,
    /// Whether warpgroups compute them.
    pub(super) by_warpgroups: bool,
    stages: usize,
}

impl Tiles {
    /// `None` if the products' tiles lay out their sums in different ways.
    pub(super) fn of(lowering: &Lowering<'_>, kernel: &Kernel) -> Option<Self> {
        let types: Vec<_> = kernel.products().iter().map(|product| operand_type(&product.a)).collect();
        let tf32 = lowering.options.tf32;
        let is_tensor = |dtype: &DType| is_tensor(*dtype, tf32);
        let is_mixed = types.iter().any(is_tensor) && !types.iter().all(is_tensor);
        let mut distinct = types.clone();
        distinct.sort();
        distinct.dedup();
        let may_be_large = types.len() == 1 && types[0] != DType::F64;
        let stages = STAGES[0];
        (!is_mixed).then_some(Tiles { types, distinct, tf32, may_be_large, by_warpgroups: false, stages })
    }

    /// The name of the tile type of a product.
    pub(super) fn name(&self, number: usize) -> String {
        format!("Tile{}", self.suffix(number))
    }

    fn suffix(&self, number: usize) -> String {
        let at = self.distinct.iter().position(|dtype| *dtype == self.types[number]);
        if self.distinct.len() == 1 { String::new() } else { format!("{}", at.expect("a type of a product")) }
    }

    /// The name of the panels of a product.
    pub(super) fn panels(&self, number: usize) -> String {
        format!("panels{}", self.suffix(number))
    }

    /// Computed by warpgroups, if there are any and they multiply such tiles, and with as many stages as there is memory for.
    pub(super) fn deepened(self, options: &Options, [rows, columns]: [usize; 2]) -> Self {
        let by_warpgroups = options.warpgroups && self.are_narrow() && [rows, columns] != SMALL;
        let one = Tiles { by_warpgroups, stages: 1, ..self };
        let memory = match by_warpgroups {
            true if one.shares(rows, columns) => SHARED_BYTES_OF_WARPGROUPS,
            true => 2 * SHARED_BYTES_OF_WARPGROUPS,
            false => SHARED_BYTES,
        };
        let memory = memory.min(options.shared_bytes);
        let stages = (memory / one.shared_bytes(rows, columns)).clamp(STAGES[0], STAGES[1]);
        Tiles { stages, ..one }
    }

    /// Whether all operands have 16 bits, as those that warpgroups multiply.
    pub(super) fn are_narrow(&self) -> bool {
        self.types.iter().all(|dtype| matches!(dtype, DType::BF16 | DType::F16))
    }

    /// With as many stages as there is memory for beside the values of a chain.
    pub(super) fn deepened_in_chain(self) -> Self {
        let one = Tiles { stages: 1, ..self };
        let stages =
            (SHARED_BYTES_IN_CHAIN / one.shared_bytes(SMALL[0], SMALL[1])).clamp(STAGES[0], STAGES[1]);
        Tiles { stages, ..one }
    }

    /// Tile types, and panels in memory that launches ask for.
    pub(super) fn declare_launched(&self, code: &mut Code, rows: usize, columns: usize) {
        let bytes = self.panel_bytes(rows, columns);
        for (at, dtype) in self.distinct.iter().enumerate() {
            let number = self.types.iter().position(|other| other == dtype).expect("a type of a product");
            let (name, panels, element) = (self.name(number), self.panels(number), element_type(*dtype));
            let ty = match self.by_warpgroups {
                true => format!("WarpgroupTile<{}, {rows}, {columns}>", memory_type(*dtype)),
                false => tile_type(*dtype, self.tf32, rows, columns),
            };
            code.line(format!("using {name} = {ty};"));
            let (offset, count) = (at * bytes, format!("panel_count<{name}>({})", self.stages));
            code.line(format!("LAUNCHED_SHARED({element}, {panels}, {offset}, {count});"));
        }
    }

    /// Bytes of shared memory that a launch asks for: of all panels and, when these are done with, of entries.
    pub(super) fn launched_bytes(&self, rows: usize, columns: usize) -> usize {
        self.shared_bytes(rows, columns).max(self.entry_bytes(rows, columns))
    }

    /// Bytes of shared memory of all panels.
    pub(super) fn shared_bytes(&self, rows: usize, columns: usize) -> usize {
        self.distinct.len() * self.panel_bytes(rows, columns)
    }

    /// Those of the panels of one type.
    pub(super) fn panel_bytes(&self, rows: usize, columns: usize) -> usize {
        self.stages * (rows + columns) * PANEL_ROW[usize::from(self.by_warpgroups)]
    }

    /// The terms of the kernel's sums, if there is one product, which is summed in `f32`; sums of other types are not divided.
    pub(super) fn divisible_terms(&self, kernel: &Kernel) -> Option<usize> {
        let is_summed_in_f32 = |dtype: DType| matches!(dtype, DType::F32 | DType::BF16 | DType::F16);
        let [product] = kernel.products() else { return None };
        (is_summed_in_f32(self.types[0]) && is_summed_in_f32(product.dtype))
            .then(|| product.k.iter().product())
    }

    /// Whether two blocks share a multiprocessor: one waits for memory while the other multiplies. The widest tiles take too many registers.
    pub(super) fn shares(&self, rows: usize, columns: usize) -> bool {
        rows * columns <= LARGE[0] * LARGE[1]
    }

    /// Bytes of shared memory through which the entries of all products go to where they are wanted (`Entries`).
    fn entry_bytes(&self, rows: usize, columns: usize) -> usize {
        self.types.len() * self.entry_bytes_of_one(rows, columns)
    }

    fn entry_bytes_of_one(&self, rows: usize, columns: usize) -> usize {
        let sizes = self.types.iter().map(|&dtype| sum_type(dtype).size());
        sizes.max().unwrap_or(0) * rows * (columns + MOST_ENTRY_PADDING)
    }

    /// The entries `entries<number>` of all products, in runs of `length` neighbours.
    pub(super) fn entries(&self, code: &mut Code, rows: usize, columns: usize, length: usize) {
        for number in 0..self.types.len() {
            let offset = number * self.entry_bytes_of_one(rows, columns);
            let tile = self.name(number);
            code.line(format!("using Entries{number} = Entries<{tile}, {length}>;"));
            let count = format!("Entries{number}::STRIDE * {tile}::ROWS");
            code.line(format!("LAUNCHED_SHARED(Entries{number}::Sum, sums{number}, {offset}, {count});"));
            code.line(format!("const Entries{number} entries{number}(product{number}, sums{number});"));
        }
    }

    /// The tile `product<number>`.
    pub(super) fn multiply(&self, code: &mut Code, kernel: &Kernel, number: usize) {
        let terms: usize = kernel.products()[number].k.iter().product();
        self.multiply_terms(code, kernel, number, &format!("0, {terms}"));
    }

    /// As `multiply`, over the terms from a first one to a last one.
    pub(super) fn multiply_terms(&self, code: &mut Code, kernel: &Kernel, number: usize, range: &str) {
        let domain = &kernel.domain;
        let [rows, columns] = [domain.row_axes(), domain.column_axes()].map(|group| domain.extent(group));
        let (panels, stages) = (self.panels(number), self.stages);
        code.line(format!("{} product{number};", self.name(number)));
        code.line(format!(
            "multiply<{stages}>(product{number}, {panels}, first_row, {rows}, a{number}, first_column, {columns}, \
             b{number}, {range});"
        ));
    }
}

/// Splits a sum of `terms` terms: the number of parts, and the terms of each part but the last. Both depend on shapes alone, so that
/// a sum has the same order on every card and in every tile.
///
/// Blocks come in waves of as many as a GPU runs at once, and the last wave takes as long as the others: 144 tiles are half a wave, five
/// parts of each are three whole ones. A part more costs a tile that is written and read once more.
pub(super) fn parts(terms: usize, large_tiles: usize) -> [usize; 2] {
    // Steps of all types end where a part does.
    let of_part = |parts: usize| terms.div_ceil(parts).max(1).next_multiple_of(64);
    let most = (terms / LEAST_TERMS).clamp(1, MOST_PARTS);
    let cost = |parts: &usize| {
        let blocks = large_tiles * parts;
        let memory = if *parts > 1 { blocks * TERMS_OF_PART } else { 0 };
        blocks.next_multiple_of(MANY_BLOCKS) * of_part(*parts) + memory
    };
    let of_part = of_part((1..=most).min_by_key(cost).unwrap_or(1));
    [terms.div_ceil(of_part), of_part]
}

/// Whether tensor cores multiply a type.
fn is_tensor(dtype: DType, tf32: bool) -> bool {
    matches!(dtype, DType::BF16 | DType::F16) || dtype == DType::F32 && tf32
}

/// The type of a tile in the source.
pub(super) fn tile_type(dtype: DType, tf32: bool, rows: usize, columns: usize) -> String {
    match dtype {
        DType::F32 if tf32 => format!("TensorTile<tf32, {rows}, {columns}>"),
        dtype if is_tensor(dtype, tf32) => format!("TensorTile<{}, {rows}, {columns}>", memory_type(dtype)),
        dtype => format!("PlainTile<{}, {rows}, {columns}>", element_type(dtype)),
    }
}

/// The type of the elements that a tile multiplies. Signed integers wrap as unsigned ones do.
pub(super) fn element_type(dtype: DType) -> &'static str {
    match dtype {
        DType::I32 | DType::Bool => "u32",
        dtype => memory_type(dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sums_of_few_tiles_are_divided() {
        assert_eq!(parts(16_384, 36), [7, 2368]);
        assert_eq!(parts(50_257, 48), [11, 4608]);
        assert_eq!(parts(1 << 20, 1), [16, 65_536]);
        // Enough tiles, too few terms, none.
        assert_eq!((parts(16_384, 792)[0], parts(2047, 1)[0], parts(0, 1)[0]), (1, 1, 0));
        // Whole waves.
        assert_eq!((parts(16_384, 144), parts(3072, 768)[0]), ([5, 3328], 1));
    }
}
