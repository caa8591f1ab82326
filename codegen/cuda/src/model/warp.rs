//! One warp of a launch, executed: which instructions it issues and when, if it were alone, and what they ask of the multiprocessor.
//!
//! Whole numbers are computed, so that loops run as often as they do on a card and addresses are those of a card. Floats, and whatever
//! is read from memory, are unknown. Where a branch depends on them, the warp does the work that the branch would skip, unless that is
//! the rare slow path of a division or a root; how often that happened is counted.
//!
//! Time goes on as the compiler's control codes say ([`Control`](super::sass::Control)): stalls, and barriers that are released when
//! results are there. So waits for memory overlap as far as the code lets them.

use super::access::{Addresses, least_wavefronts, lines, sectors, wavefronts};
use super::arithmetic::{Operands, results};
use super::card::{BARRIER, Card, L1_BYTES, SCHEDULERS};
use super::lanes::{ALL, Condition, LANES, Word, lanes_of};
use super::pipe::{self, Access, PIPES, Pipe, Wait};
use super::sass::{Address, Instruction, Operand, Place, Sass, TRUE, UNIFORM_ZERO, ZERO};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Instructions after which a warp is not followed any further.
const MOST_INSTRUCTIONS: u64 = 8_000_000;
/// Cycles in which the operands of an access have been read.
const OPERANDS_READ: f64 = 12.0;
/// Executions of an instruction whose addresses are looked at; those after it are like them.
const LOOKED_AT: u64 = 64;

/// A warp of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    /// Threads of a block.
    pub(super) threads: usize,
    /// Blocks along x, y and z.
    pub(super) grid: [u32; 3],
    /// The warp's block.
    pub(super) block: [u32; 3],
    /// Which warp of it.
    pub(super) warp: usize,
}

/// What loads find.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    /// Cycles of a load that the first cache does not have.
    pub(super) latency: f64,
    /// Pieces of 32 bytes that the first cache keeps for a warp.
    pub(super) kept: usize,
}

/// What a warp did.
#[derive(Debug, Clone, Default)]
pub(super) struct Trace {
    /// Instructions issued.
    pub(super) instructions: u64,
    /// Cycles of each pipe of a quarter.
    pub(super) busy: [f64; PIPES],
    /// Cycles of the multiprocessor's path to shared memory and first cache.
    pub(super) l1: f64,
    /// Pieces of 32 bytes that came from the second cache, and that went there.
    pub(super) sectors: [f64; 2],
    /// Cycles that a block of such warps takes alone: between barriers, the longer of one warp's time and what all of them keep busy.
    pub(super) alone: f64,
    /// Products on tensor cores, and their operations.
    pub(super) products: u64,
    pub(super) operations: u64,
    /// Accesses of shared memory: how often they need the banks, and how often they would without conflicts.
    pub(super) banks: [f64; 2],
    /// The most loads from memory that were under way at once.
    pub(super) in_flight: usize,
    /// Branches that depend on what is in memory.
    pub(super) assumed: u64,
    /// Whether it was followed to its end.
    pub(super) is_whole: bool,
    /// How often each instruction was issued, and how often each backward branch was taken.
    pub(super) counts: Vec<u64>,
    pub(super) returns: HashMap<(usize, usize), u64>,
    /// Addresses of global memory outside of every argument's.
    #[cfg(test)]
    pub(super) touched: Vec<(u64, u64)>,
}

/// Where the memory of an argument begins: far from that of all others.
pub(super) fn argument_address(number: u32) -> u64 {
    u64::from(number + 1) << 36
}

/// Executes a warp alone.
pub(super) fn run(sass: &Sass, card: &Card, position: Position, memory: Memory) -> Trace {
    let mut warp = Warp::new(sass, card, position, memory);
    while warp.trace.instructions < MOST_INSTRUCTIONS {
        if !warp.step() {
            warp.trace.is_whole = true;
            break;
        }
    }
    warp.end_interval();
    warp.trace
}

struct Warp<'a> {
    sass: &'a Sass,
    card: &'a Card,
    position: Position,
    memory: Memory,
    registers: Vec<Word>,
    uniform: Vec<Word>,
    predicates: [Condition; 8],
    uniform_predicates: [Condition; 8],
    /// Of each lane: the number of its next instruction.
    next: [usize; LANES],
    running: u32,
    /// Lanes that take part in each of the barriers at which they meet again, and those that are there.
    meetings: [(u32, u32); 16],
    calls: Vec<usize>,
    /// When the next instruction may be issued, and when this interval between barriers of the block began.
    time: f64,
    began: f64,
    /// What the interval has kept busy so far.
    interval: Interval,
    /// When each barrier of results is released.
    released: [f64; 8],
    /// When results of tensor cores are there.
    ready: [f64; 256],
    /// When copies end: the group under way, and groups before it.
    copies: f64,
    groups: VecDeque<f64>,
    /// When products of warpgroups end: of all that were started, and of the groups under way.
    products: f64,
    product_groups: VecDeque<f64>,
    loads: Vec<f64>,
    footprint: Footprint,
    /// What accesses of each instruction took on average.
    accesses: Vec<Looked>,
    trace: Trace,
}

#[derive(Debug, Clone, Copy, Default)]
struct Interval {
    instructions: f64,
    busy: [f64; PIPES],
    l1: f64,
}

/// The accesses of one instruction.
#[derive(Debug, Clone, Copy, Default)]
struct Looked {
    count: u64,
    l1: f64,
    banks: [f64; 2],
    sectors: f64,
    misses: f64,
}

/// What the first cache keeps of what the warp has read.
#[derive(Debug, Default)]
struct Footprint {
    order: VecDeque<u64>,
    kept: BTreeSet<u64>,
}

impl Footprint {
    /// Whether it is there; from now on it is.
    fn has(&mut self, sector: u64, most: usize) -> bool {
        if !self.kept.insert(sector) {
            return true;
        }
        self.order.push_back(sector);
        while self.order.len() > most {
            let oldest = self.order.pop_front().expect("there are some");
            self.kept.remove(&oldest);
        }
        false
    }
}

impl Operands for Warp<'_> {
    fn word(&self, operand: &Operand) -> Word {
        let word = match &operand.place {
            Place::Register(ZERO) | Place::Uniform(UNIFORM_ZERO) => Word::of(0),
            Place::Register(register) => self.registers[usize::from(*register)],
            Place::Uniform(register) => self.uniform[usize::from(*register)],
            Place::Immediate(bits) => Word::of(*bits),
            Place::Constant(offset) => offset.map_or(Word::unknown(), |offset| self.constant(offset)),
            _ => Word::unknown(),
        };
        let word = if operand.inverted { word.map(|bits| !bits) } else { word };
        let word = if operand.absolute { word.map(|bits| (bits as i32).unsigned_abs()) } else { word };
        if operand.negated { word.map(u32::wrapping_neg) } else { word }
    }

    fn upper(&self, operand: &Operand) -> Word {
        match &operand.place {
            Place::Register(ZERO) | Place::Uniform(UNIFORM_ZERO) | Place::Immediate(_) => Word::of(0),
            Place::Register(register) => self.registers[usize::from(*register) + 1],
            Place::Uniform(register) => self.uniform[usize::from(*register) + 1],
            Place::Constant(offset) => offset.map_or(Word::unknown(), |offset| self.constant(offset + 4)),
            _ => Word::unknown(),
        }
    }

    fn condition(&self, operand: &Operand) -> Condition {
        let condition = match operand.place {
            Place::Predicate(number) => self.predicates[usize::from(number)],
            Place::UniformPredicate(number) => self.uniform_predicates[usize::from(number)],
            _ => Condition::unknown(),
        };
        if operand.inverted { condition.not() } else { condition }
    }

    fn special(&self, name: &str) -> Word {
        let Position { block, warp, threads, .. } = self.position;
        match name {
            "SR_TID.X" => Word::lanes(|lane| (warp * LANES + lane) as u32 % threads.max(1) as u32),
            "SR_TID.Y" | "SR_TID.Z" => Word::of(0),
            "SR_CTAID.X" => Word::of(block[0]),
            "SR_CTAID.Y" => Word::of(block[1]),
            "SR_CTAID.Z" => Word::of(block[2]),
            "SR_LANEID" => Word::lanes(|lane| lane as u32),
            "SRZ" => Word::of(0),
            // A window of memory; where it begins does not matter.
            "SR_CgaCtaId" => Word::of(0),
            _ => Word::unknown(),
        }
    }
}

impl<'a> Warp<'a> {
    fn new(sass: &'a Sass, card: &'a Card, position: Position, memory: Memory) -> Self {
        let lanes = position.threads.saturating_sub(position.warp * LANES).clamp(1, LANES);
        let mut predicates = [Condition::unknown(); 8];
        predicates[usize::from(TRUE)] = Condition::of(true);
        let trace = Trace { counts: vec![0; sass.instructions.len()], ..Trace::default() };
        Warp {
            sass,
            card,
            position,
            memory,
            registers: vec![Word::unknown(); 256],
            uniform: vec![Word::unknown(); 64],
            predicates,
            uniform_predicates: predicates,
            next: [0; LANES],
            running: ALL >> (LANES - lanes),
            meetings: [(0, 0); 16],
            calls: vec![],
            time: 0.0,
            began: 0.0,
            interval: Interval::default(),
            released: [0.0; 8],
            ready: [0.0; 256],
            copies: 0.0,
            groups: VecDeque::new(),
            products: 0.0,
            product_groups: VecDeque::new(),
            loads: vec![],
            footprint: Footprint::default(),
            accesses: vec![Looked::default(); sass.instructions.len()],
            trace,
        }
    }

    /// A word of the first constant bank: the block's and the grid's size, then the addresses of arguments.
    fn constant(&self, offset: u32) -> Word {
        let Position { grid, threads, .. } = self.position;
        match offset {
            0 => Word::of(threads as u32),
            4 | 8 => Word::of(1),
            12 | 16 | 20 => Word::of(grid[(offset as usize - 12) / 4]),
            _ => match offset.checked_sub(self.card.arguments) {
                Some(offset) => Word::of((argument_address(offset / 8) >> (8 * (offset & 4))) as u32),
                None => Word::unknown(),
            },
        }
    }

    /// Issues an instruction of those lanes that are furthest behind; false if none is left.
    fn step(&mut self) -> bool {
        let waiting = self.meetings.iter().fold(0, |waiting, (_, there)| waiting | there);
        let active = self.running & !waiting;
        if active == 0 {
            return false;
        }
        // Mostly all lanes are at the same place.
        let first = self.next[active.trailing_zeros() as usize];
        let (at, lanes) = if active == ALL && self.next == [first; LANES] {
            (first, ALL)
        } else {
            let at = lanes_of(active).map(|lane| self.next[lane]).min().unwrap_or(first);
            let there = lanes_of(active).filter(|lane| self.next[*lane] == at);
            (at, there.fold(0, |lanes, lane| lanes | 1 << lane))
        };
        let Some(instruction) = self.sass.instructions.get(at) else { return false };
        let guard = instruction.guard.as_ref().map_or(Condition::of(true), |guard| self.condition(guard));
        self.issue(at, instruction, lanes & guard.possible());
        self.advance(at, instruction, lanes, guard);
        true
    }

    /// Sets where the lanes go on.
    fn advance(&mut self, at: usize, instruction: &Instruction, lanes: u32, guard: Condition) {
        let executing = lanes & guard.possible();
        match lanes {
            ALL => self.next = [at + 1; LANES],
            _ => lanes_of(lanes).for_each(|lane| self.next[lane] = at + 1),
        }
        match instruction.name() {
            "BRA" | "CALL" | "BRX" => self.branch(at, instruction, lanes, guard),
            "RET" => {
                let to = self.calls.pop().unwrap_or(self.sass.instructions.len());
                lanes_of(executing).for_each(|lane| self.next[lane] = to);
            }
            "EXIT" => {
                // Who leaves for a reason that is not known stays.
                self.running &= !(lanes & guard.bits & guard.known);
                self.meet();
            }
            "BSSY" => {
                if let Some(barrier) = meeting(instruction) {
                    self.meetings[barrier] = (lanes, 0);
                }
            }
            "BSYNC" => {
                if let Some(barrier) = meeting(instruction) {
                    self.meetings[barrier].1 |= executing;
                    self.meet();
                }
            }
            "BREAK" => {
                if let Some(barrier) = meeting(instruction) {
                    self.meetings[barrier].0 &= !executing;
                    self.meet();
                }
            }
            "BAR" => self.end_interval(),
            _ => {
                if executing != 0 {
                    self.write(instruction, executing, guard);
                }
            }
        }
    }

    /// Lets lanes go on that have met.
    fn meet(&mut self) {
        for (parts, there) in &mut self.meetings {
            if *there != 0 && *parts & self.running & !*there == 0 {
                *there = 0;
            }
        }
    }

    fn branch(&mut self, at: usize, instruction: &Instruction, lanes: u32, guard: Condition) {
        let target = instruction.operands.iter().find_map(|operand| match operand.place {
            Place::Target(target) => Some(target),
            _ => None,
        });
        let Some(target) = target else { return };
        // A second condition, if there is one.
        let second = instruction
            .operands
            .iter()
            .find(|operand| matches!(operand.place, Place::Predicate(_) | Place::UniformPredicate(_)));
        let second = second.map_or(Condition::of(true), |operand| self.condition(operand));
        let taken = Condition { bits: guard.bits & second.bits, known: guard.known & second.known };
        // Lanes that have gone different ways hardly ever have.
        let is_for_divergence = instruction.has("DIV") || instruction.has("CONV");
        let is_unknown = lanes & !taken.known != 0;
        let skipped = self.sass.instructions.get(at + 1..target).unwrap_or_default();
        let skips_slow_path = skipped.iter().any(|instruction| instruction.name() == "CALL");
        self.trace.assumed += u64::from(is_unknown && !is_for_divergence && !skips_slow_path);
        let unknown = if skips_slow_path { lanes & !taken.known } else { 0 };
        let going = if is_for_divergence { 0 } else { lanes & (taken.bits & taken.known | unknown) };
        if going == 0 {
            return;
        }
        if instruction.name() == "CALL" {
            self.calls.push(at + 1);
        }
        if target <= at {
            *self.trace.returns.entry((target, at)).or_default() += 1;
        }
        lanes_of(going).for_each(|lane| self.next[lane] = target);
    }

    /// Writes what an instruction computes.
    fn write(&mut self, instruction: &Instruction, lanes: u32, guard: Condition) {
        const WITHOUT: [&str; 12] = [
            "STG",
            "STS",
            "STL",
            "ST",
            "RED",
            "NOP",
            "DEPBAR",
            "LDGDEPBAR",
            "LDGSTS",
            "WARPSYNC",
            "BMOV",
            "MEMBAR",
        ];
        if WITHOUT.contains(&instruction.name()) {
            return;
        }
        let found = results(instruction, self);
        let is_uniform = instruction.name().starts_with('U') || matches!(instruction.name(), "R2UR" | "S2UR");
        // What is written for a reason that is not known is not known.
        let is_known = lanes & !guard.known == 0;
        let mut conditions =
            found.as_ref().map(|found| found.conditions.clone()).unwrap_or_default().into_iter();
        // Comparisons have conditions alone.
        let mut has_result =
            instruction.name().contains("SETP") || matches!(instruction.name(), "FCHK" | "R2P");
        // Votes have one and logic of conditions two; others are their sources.
        let mut left = match instruction.name() {
            "VOTE" | "VOTEU" => 1,
            "PLOP3" | "UPLOP3" => 2,
            _ => usize::MAX,
        };
        for operand in &instruction.operands {
            match operand.place {
                Place::Predicate(_) | Place::UniformPredicate(_) if left == 0 => break,
                Place::Predicate(_) | Place::UniformPredicate(_) => left -= 1,
                _ => {}
            }
            match operand.place {
                Place::Predicate(number) => {
                    let condition = conditions.next().filter(|_| is_known).unwrap_or(Condition::unknown());
                    if number != TRUE {
                        self.predicates[usize::from(number)].merge(condition, lanes);
                    }
                }
                Place::UniformPredicate(number) => {
                    let condition = conditions.next().filter(|_| is_known).unwrap_or(Condition::unknown());
                    if number != TRUE {
                        self.uniform_predicates[usize::from(number)] = condition;
                    }
                }
                Place::Register(first) if !has_result => {
                    has_result = true;
                    self.write_registers(instruction, first, found.as_ref().filter(|_| is_known), lanes);
                }
                Place::Uniform(first) if !has_result && is_uniform => {
                    has_result = true;
                    let words =
                        found.as_ref().filter(|_| is_known).map(|found| &found.words[..]).unwrap_or_default();
                    for at in 0..pipe::result_registers(instruction) {
                        let word = words.get(at).copied().unwrap_or(Word::unknown());
                        if first != UNIFORM_ZERO {
                            self.uniform[usize::from(first) + at] = word.shared(lanes);
                        }
                    }
                }
                // A source follows.
                _ => break,
            }
        }
    }

    fn write_registers(
        &mut self,
        instruction: &Instruction,
        first: u8,
        found: Option<&super::arithmetic::Results>,
        lanes: u32,
    ) {
        if first == ZERO {
            return;
        }
        for at in 0..pipe::result_registers(instruction) {
            let word = found.and_then(|found| found.words.get(at)).copied().unwrap_or(Word::unknown());
            if let Some(register) = self.registers.get_mut(usize::from(first) + at) {
                register.merge(word, lanes);
            }
        }
    }

    /// Counts an instruction, and lets time go on.
    fn issue(&mut self, at: usize, instruction: &Instruction, lanes: u32) {
        let control = instruction.control;
        let mut start = self.time;
        for barrier in 0..6 {
            if control.waits >> barrier & 1 == 1 {
                start = start.max(self.released[barrier]);
            }
        }
        for operand in &instruction.operands {
            if let Place::Register(register) = operand.place {
                start = start.max(self.ready[usize::from(register)]);
            }
        }
        match instruction.name() {
            "DEPBAR" => start = start.max(ended(&mut self.groups, instruction)),
            "WARPGROUP" if instruction.has("DEPBAR") => {
                start = start.max(ended(&mut self.product_groups, instruction));
            }
            _ => {}
        }
        if lanes != 0 {
            self.occupy(at, instruction, lanes, start);
        }
        self.trace.instructions += 1;
        self.trace.counts[at] += 1;
        self.interval.instructions += 1.0;
        self.time = start + f64::from(control.stall.max(1));
    }

    /// What an instruction keeps busy, and when its result is there.
    fn occupy(&mut self, at: usize, instruction: &Instruction, lanes: u32, start: f64) {
        let card = self.card;
        let mut end = start + card.latency.special;
        if let Some((pipe, cycles)) = pipe::busy(instruction, card) {
            self.interval.busy[pipe as usize] += cycles;
            if pipe == Pipe::Multiply {
                self.interval.busy[Pipe::F32 as usize] += card.busy.f32;
            }
        }
        match pipe::wait(instruction) {
            Wait::Shared => end = start + card.latency.shared,
            Wait::Tensor => {
                end = start + card.latency.tensor;
                self.trace.products += 1;
                self.trace.operations += pipe::tensor_operations(instruction);
                if let Some(Place::Register(first)) =
                    instruction.operands.first().map(|operand| &operand.place)
                {
                    let first = usize::from(*first);
                    self.ready[first..256.min(first + pipe::result_registers(instruction))].fill(end);
                }
            }
            Wait::Warpgroup => self.start_product(instruction, start),
            Wait::Global | Wait::Special => {}
        }
        if let Some(access) = pipe::access(instruction) {
            let latency = self.access(at, instruction, access, lanes);
            end = start + latency;
            let is_load = matches!(access, Access::LoadGlobal | Access::Copy);
            if is_load {
                self.loads.retain(|end| *end > start);
                self.loads.push(end);
                self.trace.in_flight = self.trace.in_flight.max(self.loads.len());
            }
            if access == Access::Copy {
                self.copies = self.copies.max(end);
            }
        }
        if instruction.name() == "LDGDEPBAR" {
            self.groups.push_back(std::mem::take(&mut self.copies));
        }
        let control = instruction.control;
        if let Some(barrier) = control.result {
            let released = &mut self.released[usize::from(barrier)];
            // Copies are waited for by groups.
            *released = released.max(if instruction.name() == "LDGDEPBAR" { start } else { end });
        }
        if let Some(barrier) = control.read {
            let released = &mut self.released[usize::from(barrier)];
            *released = released.max(start + OPERANDS_READ);
        }
    }

    /// A product of a warpgroup begins when those of all warpgroups before it have ended, each of which has as much to do as this one.
    fn start_product(&mut self, instruction: &Instruction, start: f64) {
        let warps = self.position.threads.div_ceil(LANES) as f64;
        let cycles = pipe::busy(instruction, self.card).map_or(0.0, |(_, cycles)| cycles);
        self.products = self.products.max(start) + cycles * (warps / SCHEDULERS as f64).ceil();
        self.interval.l1 += pipe::operand_bytes(instruction) as f64 / L1_BYTES;
        self.trace.products += 1;
        self.trace.operations += pipe::tensor_operations(instruction);
        let ends_group =
            |operand: &Operand| matches!(&operand.place, Place::Named(name) if name.starts_with("gsb"));
        if instruction.operands.iter().any(ends_group) {
            self.product_groups.push_back(self.products + self.card.latency.tensor);
        }
    }

    /// Counts an access; gives the cycles until its result is there.
    fn access(&mut self, at: usize, instruction: &Instruction, access: Access, lanes: u32) -> f64 {
        let width = instruction.width();
        let is_load = matches!(access, Access::LoadGlobal | Access::Copy);
        let looked = self.accesses[at];
        let now = if looked.count >= LOOKED_AT {
            let share = |sum: f64| sum / looked.count as f64;
            Looked {
                count: 1,
                l1: share(looked.l1),
                banks: looked.banks.map(share),
                sectors: share(looked.sectors),
                misses: share(looked.misses),
            }
        } else {
            let mut now = self.looked_at(instruction, access, lanes, width);
            now.l1 = now.l1.max(LANES as f64 / self.card.lanes);
            let sum = &mut self.accesses[at];
            sum.count += 1;
            sum.l1 += now.l1;
            (0..2).for_each(|which| sum.banks[which] += now.banks[which]);
            sum.sectors += now.sectors;
            sum.misses += now.misses;
            now
        };
        self.interval.l1 += now.l1;
        (0..2).for_each(|which| self.trace.banks[which] += now.banks[which]);
        match access {
            Access::LoadGlobal | Access::Copy => self.trace.sectors[0] += now.misses,
            Access::StoreGlobal => self.trace.sectors[1] += now.sectors,
            _ => {}
        }
        let latency = &self.card.latency;
        match access {
            _ if is_load && now.misses > 0.0 => self.memory.latency,
            Access::LoadGlobal | Access::Copy | Access::Local => latency.l1,
            Access::LoadShared | Access::StoreShared | Access::Matrices(_) => {
                latency.shared + now.banks[0] - now.banks[1]
            }
            Access::StoreGlobal | Access::Exchange => latency.shared,
        }
    }

    /// The lanes of a copy that read memory: the others fill their piece with zeros, `LDGSTS.ZFILL [to], [from], P`.
    fn copying(&self, instruction: &Instruction, lanes: u32) -> u32 {
        match instruction.operands.last() {
            Some(last) if matches!(last.place, Place::Predicate(_)) => {
                let Condition { bits, known } = self.condition(last);
                lanes & (bits | !known)
            }
            _ => lanes,
        }
    }

    /// What an access asks for, from its addresses.
    fn looked_at(&mut self, instruction: &Instruction, access: Access, lanes: u32, width: u32) -> Looked {
        let whole = f64::from(lanes.count_ones() * width);
        let mut now = Looked { count: 1, ..Looked::default() };
        let global =
            |access: Access| matches!(access, Access::LoadGlobal | Access::StoreGlobal | Access::Copy);
        if global(access) {
            let lanes = if access == Access::Copy { self.copying(instruction, lanes) } else { lanes };
            let address = instruction.operands.iter().rev().find_map(|operand| match &operand.place {
                Place::Memory(address) => Some(address),
                _ => None,
            });
            let addresses = address.and_then(|address| self.addresses(address, lanes));
            let (count, lines) = match addresses {
                Some(addresses) => {
                    let sectors = sectors(&addresses, lanes, width);
                    #[cfg(test)]
                    self.trace
                        .touched
                        .extend(lanes_of(lanes).map(|lane| (addresses[lane], u64::from(width))));
                    let is_kept = access == Access::LoadGlobal;
                    let kept = self.memory.kept;
                    let missing = sectors
                        .iter()
                        .filter(|sector| !is_kept || !self.footprint.has(**sector, kept))
                        .count();
                    now.misses = missing as f64;
                    (sectors.len() as f64, lines(&sectors) as f64)
                }
                // Lanes beside each other.
                None => {
                    let count = (whole / 32.0).ceil();
                    now.misses = count;
                    (count, (whole / 128.0).ceil())
                }
            };
            now.sectors = count;
            now.l1 = lines.max(whole / L1_BYTES);
        }
        let (mask, width) = match access {
            Access::LoadShared | Access::StoreShared => (lanes, width),
            Access::Copy => (lanes, width),
            Access::Matrices(count) => (ALL >> (LANES as u32 - 8 * count), 16),
            Access::Local => {
                now.l1 = whole / L1_BYTES;
                return now;
            }
            Access::Exchange => {
                now.l1 = 1.0;
                return now;
            }
            Access::LoadGlobal | Access::StoreGlobal => return now,
        };
        let addresses = instruction.address().and_then(|address| self.addresses(address, mask));
        let least = least_wavefronts(mask, width) as f64;
        let found = addresses.map_or(least, |addresses| wavefronts(&addresses, mask, width) as f64);
        // What all lanes read alike takes fewer.
        now.banks = [found, least.min(found)];
        // A copy's lines are looked up while the banks write what came before.
        now.l1 = now.l1.max(found);
        now
    }

    /// The addresses of these lanes, if all are known.
    fn addresses(&self, address: &Address, lanes: u32) -> Option<Addresses> {
        let mut known = ALL;
        let mut sum = [address.offset as u64; LANES];
        if let Some((register, is_long)) = address.register {
            let low = self.registers[usize::from(register)];
            let high = if is_long { self.registers[usize::from(register) + 1] } else { Word::of(0) };
            known &= low.known & high.known;
            for (lane, sum) in sum.iter_mut().enumerate() {
                let whole = u64::from(high.bits[lane]) << 32 | u64::from(low.bits[lane]);
                *sum = sum.wrapping_add(whole.wrapping_mul(u64::from(address.scale)));
            }
        }
        if let Some(register) = address.uniform {
            let low = self.uniform[usize::from(register)];
            let is_long = address.register.is_none_or(|(_, is_long)| is_long);
            let high = self.uniform.get(usize::from(register) + 1).copied().filter(|_| is_long);
            let high = high.unwrap_or(Word::of(0));
            known &= low.known & high.known;
            for (lane, sum) in sum.iter_mut().enumerate() {
                *sum = sum.wrapping_add(u64::from(high.bits[lane]) << 32 | u64::from(low.bits[lane]));
            }
        }
        (known & lanes == lanes).then_some(sum)
    }

    /// A barrier of the block: everyone has come, and what all of its warps asked for is done.
    fn end_interval(&mut self) {
        let warps = self.position.threads.div_ceil(LANES) as f64;
        let of_quarter = (warps / SCHEDULERS as f64).ceil();
        let Interval { instructions, busy, l1 } = std::mem::take(&mut self.interval);
        let quarter = busy.into_iter().fold(instructions, f64::max) * of_quarter;
        let needed = quarter.max(l1 * warps);
        self.time = (self.time + if warps > 1.0 { BARRIER } else { 0.0 }).max(self.began + needed);
        self.trace.alone += self.time - self.began;
        self.began = self.time;
        (0..PIPES).for_each(|pipe| self.trace.busy[pipe] += busy[pipe]);
        self.trace.l1 += l1;
    }
}

/// When all of these groups but the last few, as an instruction says, have ended.
fn ended(groups: &mut VecDeque<f64>, instruction: &Instruction) -> f64 {
    let left = instruction.operands.iter().find_map(|operand| match operand.place {
        Place::Immediate(left) => Some(left as usize),
        _ => None,
    });
    let done = groups.len().saturating_sub(left.unwrap_or(0));
    groups.drain(..done).fold(0.0, f64::max)
}

/// The barrier at which lanes meet again.
fn meeting(instruction: &Instruction) -> Option<usize> {
    instruction.operands.iter().find_map(|operand| match &operand.place {
        Place::Named(name) => name.strip_prefix('B')?.parse().ok().filter(|number| *number < 16),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
