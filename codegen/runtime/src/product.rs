//! A matrix product as a step of a program.

use crate::functions::Functions;
use crate::gemm::{
    Axis, Buffers, Contraction, GenericContraction, Prologue, STREAMS, TileFn, Touched, Workspaces,
};
use crate::memory::OutOfMemory;
use crate::pool::Pool;
use serde::{Deserialize, Serialize};

/// A matrix product and where its operands and results are.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProductStep {
    /// The product.
    pub work: Method,
    /// The first factor.
    pub a: SlotOffset,
    /// The second factor.
    pub b: SlotOffset,
    /// Its scales, where it is half bytes.
    pub scales: Option<SlotOffset>,
    /// Which matrices of a table these are, where that is known at run time only: A's, B's, and those of the target.
    pub choices: [Option<MatrixLookup>; 3],
    /// Where the product itself goes, unless an epilogue stores it.
    pub target: Option<SlotOffset>,
    /// What computes the factors, where something does; then `a` and `b` say what of memory is prefetched for it.
    pub prologues: [Option<ComputedFactor>; 2],
    /// A [`TileFn`].
    pub epilogue: Option<usize>,
    /// What the epilogue reads at the coordinates of the product, to be prefetched.
    pub reads: [Option<Divided>; STREAMS],
    /// As `reads`.
    pub writes: [Option<Divided>; STREAMS],
}

/// What computes a factor: a [`Prologue`] by the number of its function.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ComputedFactor {
    /// A [`TileFn`].
    pub function: usize,
    /// As [`Prologue::along_k`].
    pub along_k: bool,
}

/// Who computes it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Method {
    /// The driver of `f32` products.
    Driver(Contraction),
    /// Any other number.
    Generic(GenericContraction),
}

/// One matrix of a table for each of a batch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MatrixLookup {
    /// The numbers of the matrices, `i32` or `u32`.
    pub slot: usize,
    /// The place of the number of each product, in elements.
    pub places: Axis,
    /// How many matrices there are.
    pub limit: usize,
    /// From matrix to matrix, in elements.
    pub stride: isize,
}

impl MatrixLookup {
    /// Where the matrices of a batch lie that would lie at `batch` if all were number 0.
    ///
    /// # Safety
    /// The slot of the table has the numbers.
    unsafe fn locate(&self, table: &[*mut u8], batch: &Axis) -> Axis {
        let numbers = table[1 + self.slot].cast::<i32>().cast_const();
        let matrix = |at: usize| {
            // SAFETY: the caller's contract; a buffer's alignment is that of its elements.
            let number = unsafe { numbers.wrapping_offset(self.places.at(at)).read_unaligned() };
            let number = usize::try_from(number).unwrap_or(0).min(self.limit - 1);
            batch.at(at) + number as isize * self.stride
        };
        Axis::Table((0..batch.len()).map(matrix).collect())
    }
}

/// A place in a buffer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct SlotOffset {
    /// Of which buffer.
    pub slot: usize,
    /// In bytes.
    pub offset: i64,
}

/// A matrix at the coordinates of the product, all in bytes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Divided {
    /// Of which buffer.
    pub slot: usize,
    /// Of element (0, 0, 0).
    pub offset: i64,
    /// Of an element.
    pub size: usize,
    /// From row to row.
    pub row: usize,
    /// From matrix to matrix.
    pub batch: isize,
}

impl ProductStep {
    /// The slot that the second factor lies in, where it is a matrix of that buffer whatever happens at run time.
    pub fn second_factor(&self) -> Option<usize> {
        let [_, prologue] = &self.prologues;
        let [_, choice, _] = &self.choices;
        let is_driven = matches!(self.work, Method::Driver(_));
        (is_driven && prologue.is_none() && choice.is_none()).then_some(self.b.slot)
    }

    /// The functions that it calls.
    pub(crate) fn functions(&self) -> impl Iterator<Item = usize> {
        self.prologues.iter().flatten().map(|factor| factor.function).chain(self.epilogue)
    }

    /// Runs the product.
    ///
    /// # Errors
    /// There is no memory for packed operands.
    ///
    /// # Safety
    /// The table has the pointers of the step's program, whose functions these are.
    pub(crate) unsafe fn run(
        &self,
        functions: &Functions,
        table: &[*mut u8],
        pool: &Pool,
        workspaces: &Workspaces,
    ) -> Result<(), OutOfMemory> {
        let at = |target: SlotOffset| table[1 + target.slot].wrapping_offset(target.offset as isize);
        let (a, b) = (at(self.a), at(self.b));
        let c = self.target.map_or(std::ptr::null_mut(), at);
        let contraction = match &self.work {
            Method::Driver(contraction) => contraction,
            Method::Generic(generic) => {
                // SAFETY: index maps stay inside their buffers, and the target holds the whole product.
                unsafe { generic.run(a, b, c, pool) };
                return Ok(());
            }
        };
        // SAFETY: prologues and epilogues are built with this signature.
        let function = |at| unsafe { std::mem::transmute::<*const u8, TileFn>(functions.address(at)) };
        let prologue = |factor: ComputedFactor| {
            let ComputedFactor { function: number, along_k } = factor;
            Prologue { function: function(number), along_k }
        };
        let prologues = self.prologues.map(|factor| factor.map(prologue));
        let epilogue = self.epilogue.map(function);
        let mut contraction = Contraction { prologues, epilogue, ..contraction.clone() };
        let [of_a, of_b, of_c] = &self.choices;
        let batches = [(of_a, Some(&mut contraction.a.batch)), (of_b, Some(&mut contraction.b.batch))];
        for (choice, batch) in batches.into_iter().chain([(of_c, contraction.output.batch_mut())]) {
            if let (Some(choice), Some(batch)) = (choice, batch) {
                // SAFETY: the numbers are in the table.
                *batch = unsafe { choice.locate(table, batch) };
            }
        }
        let touched = |matrix: Divided| Touched {
            start: at(SlotOffset { slot: matrix.slot, offset: matrix.offset }),
            size: matrix.size,
            row: matrix.row,
            batch: matrix.batch,
        };
        let buffers = Buffers {
            a,
            b,
            scales: self.scales.map_or(std::ptr::null(), |scales| at(scales).cast_const()),
            c: c.cast(),
            context: table.as_ptr().cast(),
            reads: self.reads.map(|matrix| matrix.map(touched)),
            writes: self.writes.map(|matrix| matrix.map(touched)),
        };
        // SAFETY: index maps stay inside their buffers, results overlap no operand, and the epilogue only needs
        // the table, which outlives the run.
        unsafe { contraction.run(&buffers, pool, workspaces)? };
        Ok(())
    }
}
