//! Running a chain: by whole matrices, each on one thread, or by blocks of rows that all threads share.

use super::{Along, Block, ChainConsumer, ChainStep, Destination, Placed};
use crate::functions::Functions;
use crate::gemm::later::Later;
use crate::gemm::single_thread::{ALIGN, LANES, Panels, Results, Room, SingleThread, Wedge};
use crate::gemm::{
    Axis, Buffers, Contraction, Element, Matrix, Operand, Output, Precision, STREAMS, TileFn, Tiles,
    Workspaces, store,
};
use crate::isa::Isa;
use crate::math::zero_upper;
use crate::memory::OutOfMemory;
use crate::pool::{Pool, share};
use std::ops::Range;

/// Scratch rows of the threads: where they start, and bytes from one thread to the next.
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

/// Pointers of a kernel, shared by threads.
struct Table<'a>(&'a [*mut u8]);

// SAFETY: threads only read the table; what they do through it is the kernel's.
unsafe impl Sync for Table<'_> {}

/// What becomes of the sums of one block of rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sums {
    /// They are the first ones, in all columns.
    Start,
    /// They are the first ones, in some columns; the others are set to zero first.
    StartSome,
    /// They are added.
    Add,
}

impl ChainStep {
    /// Runs the chain.
    ///
    /// # Errors
    /// There is no memory for packed operands.
    ///
    /// # Safety
    /// The table has the pointers of the step's program, whose functions these are, and there is scratch for every
    /// thread.
    pub(crate) unsafe fn run(
        &self,
        functions: &Functions,
        table: &[*mut u8],
        pool: &Pool,
        workspaces: &Workspaces,
        scratch: Scratch,
    ) -> Result<(), OutOfMemory> {
        // SAFETY: the row program is built with this signature.
        let function = unsafe { std::mem::transmute::<*const u8, TileFn>(functions.address(self.function)) };
        if self.own {
            workspaces.reserve(pool.threads(), self.own_words() * 4)?;
            let table = Table(table);
            pool.run(&|t| {
                workspaces.with(t, |memory| {
                    let table: &Table<'_> = &table;
                    let mut own = Own::new(self, table.0, memory.as_ptr().cast(), function);
                    own.table[1 + self.scratch] = (scratch.start + t * scratch.bytes) as *mut u8;
                    // SAFETY: the machine has the instruction set.
                    let _tiles =
                        unsafe { SingleThread::configured(self.precisions().map(|p| self.local(p))) };
                    let mine = share(self.batch, pool.threads(), t);
                    for matrix in mine.clone() {
                        own.later = match mine.contains(&(matrix + 1)) {
                            true => own.fetched(matrix + 1),
                            false => Later::default(),
                        };
                        // SAFETY: the caller's contract; matrices have results of their own.
                        unsafe { own.matrix(matrix) };
                    }
                });
            });
            return Ok(());
        }
        let shared = Shared { step: self, table, pool, workspaces, function, scratch };
        (0..self.batch).try_for_each(|matrix| {
            // SAFETY: the caller's contract.
            unsafe { shared.matrix(matrix) }
        })
    }

    /// Blocks of rows, in the order in which they are computed: below a diagonal from the last one on, which needs the most columns.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let (rows, height, count) = (self.rows, self.height, self.rows.div_ceil(self.height));
        let is_backwards = self.upper().is_some();
        let numbers = (0..count).map(move |at| if is_backwards { count - 1 - at } else { at });
        numbers.map(move |number| number * height..rows.min((number + 1) * height))
    }

    /// What consumers across rows do with a block's sums.
    fn sums(&self, rows: &Range<usize>) -> Sums {
        let is_first = self.blocks().next().as_ref() == Some(rows);
        match is_first {
            true if self.needed(rows) == (0..self.columns) => Sums::Start,
            true => Sums::StartSome,
            false => Sums::Add,
        }
    }

    /// The columns that a block needs, from and to multiples of what products want.
    fn needed(&self, rows: &Range<usize>) -> Range<usize> {
        let Some(band) = self.band else { return 0..self.columns };
        let needed = band.columns(rows.clone(), self.columns);
        needed.start / ALIGN * ALIGN..needed.end.next_multiple_of(ALIGN).min(self.columns)
    }

    /// How far the band reaches to the right of the diagonal, if it ends there.
    fn upper(&self) -> Option<isize> {
        self.band.and_then(|band| band.upper).map(|upper| upper as isize)
    }

    /// How many of these columns lie left of the band's upper edge in every one of the rows: whole registers, since a value that
    /// is written across two is slow to read back.
    fn inside(&self, rows: &Range<usize>, columns: &Range<usize>) -> usize {
        let upper = self.band.and_then(|band| band.upper).unwrap_or(0);
        let edge = (rows.start as i64 + upper + 1).clamp(columns.start as i64, columns.end as i64);
        (edge as usize - columns.start) / LANES * LANES
    }

    /// Runs the row program on these rows of a block, as many at a time as need the same columns of the block's, and sets the
    /// others to zero: consumers read what lies beyond the edges of the band as far as their tiles reach: at most `reach` columns
    /// to the right of the diagonal.
    ///
    /// # Safety
    /// The table is a thread's, and its blocks have these rows and columns.
    unsafe fn rows(
        &self,
        function: TileFn,
        table: &[*mut u8],
        batch: usize,
        mut rows: Range<usize>,
        columns: &Range<usize>,
        reach: usize,
    ) {
        let none = std::ptr::null_mut();
        let context = table.as_ptr().cast();
        zero_upper();
        while !rows.is_empty() {
            let needed = self.needed_by_row(rows.start, columns);
            let count = rows.clone().take_while(|&row| self.needed_by_row(row, columns) == needed).count();
            let alike = rows.start..rows.start + count;
            let inside = self.inside(&alike, &needed);
            // SAFETY: the caller's contract.
            unsafe {
                function(none, inside, alike.start, needed.start, count, needed.len(), batch, context);
                for block in self.blocks_of_values() {
                    // As far as whole steps of products reach where they read pairs as they lie.
                    let end = match block.element {
                        Element::Bf16 => columns.end.next_multiple_of(ALIGN),
                        _ => columns.end,
                    };
                    let reached = self.upper().map_or(end, |upper| {
                        (alike.end.saturating_add(reach)).saturating_add_signed(upper).max(needed.end)
                    });
                    for beyond in [columns.start..needed.start, needed.end..end.min(reached)] {
                        self.clear(block, table[1 + block.slot], &alike, &beyond);
                    }
                }
            }
            rows.start = alike.end;
        }
    }

    /// Of a block's columns those that a row needs, in whole registers; one register at least, so that a row that needs none has the
    /// statistics of nothing but masked entries.
    fn needed_by_row(&self, row: usize, columns: &Range<usize>) -> Range<usize> {
        let Some(band) = self.band else { return columns.clone() };
        let needed = band.columns(row..row + 1, self.columns);
        let last = columns.end.saturating_sub(1).max(columns.start);
        let start = needed.start.clamp(columns.start, last) / LANES * LANES;
        start..needed.end.max(start + 1).next_multiple_of(LANES).min(columns.end)
    }

    /// Sets columns of a block, which has row 0 at `start`, to zero.
    unsafe fn clear(&self, block: &Block, start: *mut u8, rows: &Range<usize>, columns: &Range<usize>) {
        if columns.is_empty() {
            return;
        }
        let size = block.element.size();
        for row in rows.clone() {
            let line = start.wrapping_add(row * block.row_bytes(self.columns) + columns.start * size);
            // SAFETY: the caller's contract.
            unsafe { line.write_bytes(0, columns.len() * size) };
        }
    }

    /// The blocks that consumers read, each once.
    fn blocks_of_values(&self) -> impl Iterator<Item = &Block> {
        let is_read = |number: usize| self.consumers.iter().any(|consumer| consumer.block == number);
        self.blocks.iter().enumerate().filter(move |&(number, _)| is_read(number)).map(|(_, block)| block)
    }

    /// Length of a consumer's sums over a whole matrix.
    fn summed(&self, consumer: &ChainConsumer) -> usize {
        match consumer.along {
            Along::Columns => self.columns,
            Along::Rows => self.height,
        }
    }

    fn rows_aside(&self, consumer: &ChainConsumer) -> usize {
        consumer.rows_aside(self.height, self.columns)
    }

    /// Words that a thread needs for matrices of its own.
    fn own_words(&self) -> usize {
        let blocks = self.blocks.iter().map(|block| self.block_words(block)).sum::<usize>();
        let products = self.products.iter().map(|p| self.local(p.precision).panel_words(self.columns, p.k));
        let consumers = self.consumers.iter().map(|c| {
            let panels = self.local(c.precision).panel_words(c.p, self.summed(c));
            panels + (self.rows_aside(c) * c.p).next_multiple_of(16)
        });
        blocks + products.chain(consumers).sum::<usize>() + SingleThread::SPACE
    }

    /// Words that a block takes.
    fn block_words(&self, block: &Block) -> usize {
        self.height * block.row_bytes(self.columns) / 4
    }

    fn local(&self, precision: Precision) -> SingleThread {
        SingleThread::new(self.isa, precision)
    }

    /// How many tiles the products of one matrix are, about.
    fn tiles(&self) -> usize {
        let of_block = |rows: Range<usize>| {
            let (rows, columns) = (rows.len(), self.needed(&rows).len());
            let products =
                self.products.iter().map(|product| self.local(product.precision).count(rows, columns));
            let consumers = self.consumers.iter().map(|consumer| {
                let rows = match consumer.along {
                    Along::Columns => rows,
                    Along::Rows => columns,
                };
                self.local(consumer.precision).count(rows, consumer.p)
            });
            products.chain(consumers).sum::<usize>()
        };
        self.blocks().map(of_block).sum()
    }

    /// Of all products.
    fn precisions(&self) -> impl Iterator<Item = Precision> {
        let consumers = self.consumers.iter().map(|consumer| consumer.precision);
        self.products.iter().map(|product| product.precision).chain(consumers)
    }
}

/// A thread with its memory.
struct Own<'a> {
    step: &'a ChainStep,
    /// Of this thread: blocks and scratch rows are its own.
    table: Vec<*mut u8>,
    function: TileFn,
    /// The blocks of entries and values.
    blocks: Vec<*mut u8>,
    /// Panels of each product and of each consumer.
    panels: Vec<Panels>,
    with: Vec<Panels>,
    /// Results of consumers that are not written as they are computed.
    aside: Vec<*mut f32>,
    room: Room,
    /// The factors of the next matrix.
    later: Later<'a>,
    /// How many tiles a matrix takes, about.
    tiles: usize,
    /// How many columns right of the diagonal consumers' tiles reach at most.
    reach: usize,
}

impl<'a> Own<'a> {
    fn new(step: &'a ChainStep, table: &[*mut u8], memory: *mut u32, function: TileFn) -> Self {
        let mut free = memory;
        let mut take = |words: usize| {
            let start = free;
            free = free.wrapping_add(words);
            start
        };
        let room = Room(take(SingleThread::SPACE));
        let blocks = step.blocks.iter().map(|block| take(step.block_words(block)).cast()).collect();
        let panels = step.products.iter().map(|p| {
            let words = take(step.local(p.precision).panel_words(step.columns, p.k));
            Panels { words, columns: step.columns, k: p.k }
        });
        let panels = panels.collect();
        let (mut with, mut aside) = (vec![], vec![]);
        for consumer in &step.consumers {
            let k = step.summed(consumer);
            let words = take(step.local(consumer.precision).panel_words(consumer.p, k));
            with.push(Panels { words, columns: consumer.p, k });
            aside.push(take((step.rows_aside(consumer) * consumer.p).next_multiple_of(16)).cast());
        }
        let (table, later, tiles) = (table.to_vec(), Later::default(), step.tiles());
        let reach = step.consumers.iter().map(|consumer| step.local(consumer.precision).reach()).max();
        let reach = reach.unwrap_or(0);
        Own { step, table, function, blocks, panels, with, aside, room, later, tiles, reach }
    }

    /// What is fetched while a matrix is computed: the factors of the next one, each once.
    fn fetched(&self, next: usize) -> Later<'a> {
        let step = self.step;
        let products = step.products.iter().flat_map(|product| [&product.a, &product.b]);
        let factors = products.chain(step.consumers.iter().map(|consumer| &consumer.with));
        let mut matrices: Vec<Matrix<'_>> = vec![];
        for matrix in factors.map(|factor| self.factor(factor, next)) {
            if matrices.iter().all(|known| known.start != matrix.start) {
                matrices.push(matrix);
            }
        }
        Later::of(&matrices, self.tiles)
    }

    /// One matrix of the batch.
    unsafe fn matrix(&mut self, batch: usize) {
        let step = self.step;
        // SAFETY: the caller's contract, here and below.
        unsafe {
            for (product, panels) in step.products.iter().zip(&self.panels) {
                let b = self.factor(&product.b, batch);
                step.local(product.precision).pack(&b, 0, panels, self.room);
            }
            let consumers = step.consumers.iter().zip(&self.with);
            for (consumer, panels) in consumers.filter(|(consumer, _)| consumer.along == Along::Columns) {
                let with = self.factor(&consumer.with, batch);
                step.local(consumer.precision).pack(&with, 0, panels, self.room);
            }
            for rows in step.blocks() {
                self.block(batch, rows);
            }
            for (at, consumer) in step.consumers.iter().enumerate() {
                if consumer.along == Along::Rows && consumer.out.direct().is_none() {
                    self.store(at, batch, 0..step.columns);
                }
            }
        }
    }

    unsafe fn block(&mut self, batch: usize, rows: Range<usize>) {
        let step = self.step;
        let columns = step.needed(&rows);
        // SAFETY: the caller's contract, here and below.
        unsafe {
            for (product, panels) in step.products.iter().zip(&self.panels) {
                let a = self.factor(&product.a, batch);
                let start = self.blocks[product.block].cast::<f32>().wrapping_add(columns.start);
                let ld = step.blocks[product.block].stride(step.columns);
                let results = Results { start, ld, adds: false };
                let local = step.local(product.precision);
                let wedge =
                    step.upper().map_or(Wedge::None, |upper| Wedge::Columns(rows.start as isize + upper));
                let k = 0..product.k;
                local.multiply(
                    &a,
                    rows.clone(),
                    k,
                    panels,
                    columns.clone(),
                    wedge,
                    &results,
                    self.room,
                    &mut self.later,
                );
            }
            for (block, &start) in step.blocks.iter().zip(&self.blocks) {
                self.table[1 + block.slot] = start.wrapping_sub(rows.start * block.row_bytes(step.columns));
            }
            step.rows(self.function, &self.table, batch, rows.clone(), &columns, self.reach);
            for (at, consumer) in step.consumers.iter().enumerate() {
                match consumer.along {
                    Along::Columns => self.along_columns(at, batch, &rows, &columns),
                    Along::Rows => self.across_rows(at, batch, &rows, &columns),
                }
            }
        }
    }

    /// O[rows] = R · W
    unsafe fn along_columns(&mut self, at: usize, batch: usize, rows: &Range<usize>, columns: &Range<usize>) {
        let (step, consumer) = (self.step, &self.step.consumers[at]);
        let block = &step.blocks[consumer.block];
        let (outer, k) = (strided(rows.len(), block.stride(step.columns)), strided(step.columns, 1));
        let start = self.blocks[consumer.block].cast_const();
        let r = Matrix { start, element: block.element, outer: &outer, k: &k };
        let results = match consumer.out.direct() {
            Some(ld) => {
                let start = self.out(&consumer.out, batch).cast::<f32>();
                let start = start.wrapping_offset(consumer.out.outer.at(rows.start));
                Results { start, ld, adds: false }
            }
            None => Results { start: self.aside[at], ld: consumer.p, adds: false },
        };
        // SAFETY: the caller's contract.
        unsafe {
            let local = step.local(consumer.precision).of_rounded();
            let panels = &self.with[at];
            let wedge = step.upper().map_or(Wedge::None, |upper| Wedge::EndOfK(rows.start as isize + upper));
            let (r_rows, p) = (0..rows.len(), 0..consumer.p);
            let later = &mut self.later;
            local.multiply(&r, r_rows, columns.clone(), panels, p, wedge, &results, self.room, later);
            if consumer.out.direct().is_none() {
                self.store(at, batch, rows.clone());
            }
        }
    }

    /// O'[columns] += Rᵀ · W[rows]
    unsafe fn across_rows(&mut self, at: usize, batch: usize, rows: &Range<usize>, columns: &Range<usize>) {
        let (step, consumer) = (self.step, &self.step.consumers[at]);
        let local = step.local(consumer.precision).of_rounded();
        let panels = Panels { k: rows.len(), ..self.with[at] };
        let with = self.factor(&consumer.with, batch);
        let block = &step.blocks[consumer.block];
        let (outer, k) = (strided(step.columns, 1), strided(rows.len(), block.stride(step.columns)));
        let start = self.blocks[consumer.block].cast_const();
        let r = Matrix { start, element: block.element, outer: &outer, k: &k };
        let (start, ld) = match consumer.out.direct() {
            Some(ld) => (self.out(&consumer.out, batch).cast::<f32>(), ld),
            None => (self.aside[at], consumer.p),
        };
        let sums = step.sums(rows);
        let results = Results { start: start.wrapping_add(columns.start * ld), ld, adds: sums == Sums::Add };
        // SAFETY: the caller's contract.
        unsafe {
            if sums == Sums::StartSome {
                self.clear(at, batch);
            }
            step.local(consumer.precision).pack(&with, rows.start, &panels, self.room);
            let before = rows.start as isize - columns.start as isize;
            let wedge = step.upper().map_or(Wedge::None, |upper| Wedge::StartOfK(before + upper));
            let (k, p) = (0..rows.len(), 0..consumer.p);
            let later = &mut self.later;
            local.multiply(&r, columns.clone(), k, &panels, p, wedge, &results, self.room, later);
        }
    }

    /// Sets the sums of a consumer across rows to zero.
    unsafe fn clear(&self, at: usize, batch: usize) {
        let consumer = &self.step.consumers[at];
        let (start, ld) = match consumer.out.direct() {
            Some(ld) => (self.out(&consumer.out, batch).cast::<f32>(), ld),
            None => (self.aside[at], consumer.p),
        };
        for row in 0..self.step.columns {
            // SAFETY: the caller's contract.
            unsafe { start.wrapping_add(row * ld).write_bytes(0, consumer.p) };
        }
    }

    /// Stores results that were computed aside, `rows` of the consumer's.
    unsafe fn store(&self, at: usize, batch: usize, rows: Range<usize>) {
        let (step, consumer) = (self.step, &self.step.consumers[at]);
        let out = &consumer.out;
        let start = self.out(out, batch);
        for (i, row) in rows.enumerate() {
            let from = self.aside[at].wrapping_add(i * consumer.p);
            // SAFETY: the caller's contract.
            unsafe { store_row(step.isa, from, consumer.p, start, out, row) };
        }
    }

    fn factor<'f>(&self, factor: &'f Placed, batch: usize) -> Matrix<'f> {
        let base = self.table[1 + factor.slot].wrapping_offset(factor.offset as isize);
        Matrix::of(&factor.operand, base, batch)
    }

    /// The first byte of a consumer's result of one matrix.
    fn out(&self, out: &Destination, batch: usize) -> *mut u8 {
        place(&self.table, out, batch)
    }
}

fn place(table: &[*mut u8], out: &Destination, batch: usize) -> *mut u8 {
    let start = table[1 + out.slot].wrapping_offset(out.offset as isize);
    start.wrapping_offset(out.batch.at(batch) * out.element.size() as isize)
}

/// Stores one row of results, narrowed.
unsafe fn store_row(isa: Isa, from: *const f32, count: usize, start: *mut u8, out: &Destination, row: usize) {
    let at = |offset: isize| start.wrapping_offset(offset * out.element.size() as isize);
    let line = out.outer.at(row);
    // SAFETY: the caller's contract.
    unsafe {
        match &out.p {
            Axis::Strided { stride, .. } => store(isa, out.element, at(line), *stride, from, count),
            Axis::Table(table) => {
                for (j, offset) in table[..count].iter().enumerate() {
                    store(isa, out.element, at(line + offset), 1, from.wrapping_add(j), 1);
                }
            }
        }
    }
}

fn strided(len: usize, stride: usize) -> Axis {
    Axis::Strided { len, stride: stride as isize }
}

/// All threads together, for matrices that are few and large.
struct Shared<'a> {
    step: &'a ChainStep,
    table: &'a [*mut u8],
    pool: &'a Pool,
    workspaces: &'a Workspaces,
    function: TileFn,
    scratch: Scratch,
}

impl Shared<'_> {
    unsafe fn matrix(&self, batch: usize) -> Result<(), OutOfMemory> {
        let step = self.step;
        for rows in step.blocks() {
            let columns = step.needed(&rows);
            // SAFETY: the caller's contract, here and below.
            unsafe {
                for product in &step.products {
                    let (a, a_base) = self.factor(&product.a, batch, Some(rows.clone()), None);
                    let (b, b_base) = self.factor(&product.b, batch, Some(columns.clone()), None);
                    let c = self.block(product.block).cast::<f32>().wrapping_add(columns.start);
                    let ldc = step.blocks[product.block].stride(step.columns);
                    let job = self.job(product.precision, a, b, ldc, false);
                    self.multiply(&job, a_base, b_base, c)?;
                }
                self.rows(batch, &rows, &columns);
                for consumer in &step.consumers {
                    self.consume(consumer, batch, &rows, &columns)?;
                }
            }
        }
        Ok(())
    }

    unsafe fn rows(&self, batch: usize, rows: &Range<usize>, columns: &Range<usize>) {
        let step = self.step;
        let shared = Table(self.table);
        let (function, scratch) = (self.function, self.scratch);
        self.pool.run(&|t| {
            let shared: &Table<'_> = &shared;
            let mut table = shared.0.to_vec();
            for block in &step.blocks {
                let start = table[1 + block.slot];
                table[1 + block.slot] = start.wrapping_sub(rows.start * block.row_bytes(step.columns));
            }
            table[1 + step.scratch] = (scratch.start + t * scratch.bytes) as *mut u8;
            let mine = share(rows.len(), self.pool.threads(), t);
            let mine = rows.start + mine.start..rows.start + mine.end;
            // SAFETY: rows of different threads are disjoint.
            unsafe { step.rows(function, &table, batch, mine, columns, usize::MAX) };
        });
    }

    unsafe fn consume(
        &self,
        consumer: &ChainConsumer,
        batch: usize,
        rows: &Range<usize>,
        columns: &Range<usize>,
    ) -> Result<(), OutOfMemory> {
        let step = self.step;
        let out = &consumer.out;
        let (start, ld) = match out.direct() {
            Some(ld) => (place(self.table, out, batch).cast::<f32>(), ld),
            None => (self.table[1 + consumer.aside].cast::<f32>(), consumer.p),
        };
        let Block { element, .. } = step.blocks[consumer.block];
        let stride = step.blocks[consumer.block].stride(step.columns);
        let (summed, unit) = (strided(rows.len(), stride), strided(columns.len(), 1));
        let one = strided(1, 0);
        let block = self.block(consumer.block).wrapping_add(columns.start * element.size());
        let sums = step.sums(rows);
        let (r, part, c, adds) = match consumer.along {
            Along::Columns => {
                let r = Operand { element, outer: summed, k: unit, batch: one };
                // What is computed aside is this block's alone.
                let first = if out.direct().is_some() { rows.start } else { 0 };
                (r, columns, start.wrapping_add(first * ld), false)
            }
            Along::Rows => {
                let r = Operand { element, outer: unit, k: summed, batch: one };
                (r, rows, start.wrapping_add(columns.start * ld), sums == Sums::Add)
            }
        };
        if consumer.along == Along::Rows && sums == Sums::StartSome {
            for row in 0..step.columns {
                // SAFETY: the result has these rows.
                unsafe { start.wrapping_add(row * ld).write_bytes(0, consumer.p) };
            }
        }
        let (with, base) = self.factor(&consumer.with, batch, None, Some(part.clone()));
        let job = self.job(consumer.precision, r, with, ld, adds);
        // SAFETY: the caller's contract.
        unsafe { self.multiply(&job, block.cast_const(), base, c)? };
        let is_last = step.blocks().last().as_ref() == Some(rows);
        match consumer.along {
            _ if out.direct().is_some() => {}
            Along::Columns => self.store(consumer, batch, rows.clone()),
            Along::Rows if is_last => self.store(consumer, batch, 0..step.columns),
            Along::Rows => {}
        }
        Ok(())
    }

    /// Stores results that were computed aside.
    fn store(&self, consumer: &ChainConsumer, batch: usize, rows: Range<usize>) {
        let shared = Table(self.table);
        self.pool.run(&|t| {
            let shared: &Table<'_> = &shared;
            let from = shared.0[1 + consumer.aside].cast::<f32>();
            let start = place(shared.0, &consumer.out, batch);
            for i in share(rows.len(), self.pool.threads(), t) {
                let row = from.wrapping_add(i * consumer.p);
                // SAFETY: rows of different threads are disjoint.
                unsafe { store_row(self.step.isa, row, consumer.p, start, &consumer.out, rows.start + i) };
            }
        });
    }

    fn block(&self, number: usize) -> *mut u8 {
        self.table[1 + self.step.blocks[number].slot]
    }

    /// Part of one matrix of a factor, and where it starts.
    fn factor(
        &self,
        factor: &Placed,
        batch: usize,
        outer: Option<Range<usize>>,
        k: Option<Range<usize>>,
    ) -> (Operand, *const u8) {
        let operand = &factor.operand;
        let cut = |axis: &Axis, part: Option<Range<usize>>| {
            let part = part.unwrap_or(0..axis.len());
            match axis {
                Axis::Strided { stride, .. } => {
                    (part.start as isize * stride, Axis::Strided { len: part.len(), stride: *stride })
                }
                Axis::Table(table) => (0, Axis::Table(table[part].into())),
            }
        };
        let ((skipped, outer), (before, k)) = (cut(&operand.outer, outer), cut(&operand.k, k));
        let offset = operand.batch.at(batch) + skipped + before;
        let base = self.table[1 + factor.slot].wrapping_offset(factor.offset as isize);
        let start = base.wrapping_offset(offset * operand.element.size() as isize);
        (Operand { element: operand.element, outer, k, batch: strided(1, 0) }, start)
    }

    fn job(&self, precision: Precision, a: Operand, b: Operand, ldc: usize, adds: bool) -> Contraction {
        Contraction {
            isa: self.step.isa,
            m: a.outer.len(),
            n: b.outer.len(),
            k: a.k.len(),
            batch: 1,
            a,
            b,
            output: Output::Direct { batch: strided(1, 0), ldc, adds },
            precision,
            tiles: Tiles::Any,
            prologues: [None; 2],
            epilogue: None,
        }
    }

    unsafe fn multiply(
        &self,
        job: &Contraction,
        a: *const u8,
        b: *const u8,
        c: *mut f32,
    ) -> Result<(), OutOfMemory> {
        let nothing = [None; STREAMS];
        let buffers = Buffers {
            a,
            b,
            scales: std::ptr::null(),
            c,
            context: std::ptr::null(),
            reads: nothing,
            writes: nothing,
        };
        // SAFETY: the caller's contract.
        unsafe { job.run(&buffers, self.pool, self.workspaces)? };
        Ok(())
    }
}
