//! Whether the schedules would notice: each barrier and each wait is taken out in turn, and some case must fail under
//! some schedule.

use crate::judge::{Case, failures, is_skipped};
use crate::support::{Bench, Program, Random, at};
use crate::{gemv, products, strips};
use kernfusion_cuda::emulator::{Emulator, ThreadSchedule};
use kernfusion_cuda::{Function, HEADERS, Launches, Options, Renderer};
use kernfusion_ir::evaluate::{Array, Precision};
use kernfusion_ir::kernel::{Buffer, BufferRole, Direction, Domain, Form, InstrKind, Place, interpret};
use kernfusion_ir::{Binary, DType, ReduceOp, TensorType};
use std::collections::BTreeMap;
use std::ops::Range;
use std::slice;
use tempfile::NamedTempFile;

const BARRIERS: [&str; 4] =
    ["__syncthreads();", "copy_wait<0>();", "copy_wait<AHEAD - 1>();", "copy_wait<STAGES - 2>();"];

/// Rows longer than a warp takes: two sums, one after the other, then a value of the row that is overwritten in place
/// while all columns read it.
fn long_rows() -> Case {
    let [rows, columns] = [3, 1500];
    let (mut bench, mut random) = (Bench::default(), Random(5));
    let x = bench.input("x", random.tensor(&TensorType::new(DType::F32, [rows, columns]), -1.0, 1.0));
    let m = bench.buffer("m", TensorType::new(DType::F32, [rows]), BufferRole::State);
    bench.inputs.insert("m".into(), random.tensor(&TensorType::new(DType::F32, [rows]), 1.0, 2.0));
    let y = bench.output("y", DType::F32, &[rows, columns]);
    let new = bench.buffer("new", TensorType::new(DType::F32, [rows]), BufferRole::Temporary);
    let mut p = Program::default();
    let value = p.load(x, DType::F32, at(&[columns as i64, 1]));
    let old = p.load(m, DType::F32, at(&[1, 0]));
    let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, value), DType::F32);
    let shifted = p.push(InstrKind::Binary(Binary::Sub, value, sum), DType::F32);
    let second = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, shifted), DType::F32);
    let scaled = p.push(InstrKind::Binary(Binary::Mul, shifted, old), DType::F32);
    let updated = p.push(InstrKind::Binary(Binary::Add, old, second), DType::F32);
    p.store(scaled, y, at(&[columns as i64, 1]));
    p.store(updated, new, at(&[1, 0]));
    let domain = Domain { axes: vec![rows, columns], outer: 0, rows: 1 };
    bench.kernel(Form::Reduce, domain, p.region, p.stores);
    bench.graph.updates = vec![(m, new)];
    let array = |tensor: &kernfusion_ir::Tensor| Array { ty: tensor.ty(), values: tensor.to_f64() };
    let inputs = bench.inputs.iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect();
    let expected = interpret(&bench.graph, &inputs, Precision::Declared).expect("all inputs");
    let mut plan = bench.plan();
    plan.places[new.0 as usize] = Place::Alias(m);
    Case { name: "long rows".into(), plan, inputs: bench.inputs, expected, tolerance: 1e-4 }
}

/// Two sums across short rows of what is left of them without their means: each warp of a block has rows of its own.
fn short_rows() -> Case {
    let [rows, columns] = [40, 45];
    let (mut bench, mut random) = (Bench::default(), Random(6));
    let x = bench.input("x", random.tensor(&TensorType::new(DType::F32, [rows, columns]), -1.0, 1.0));
    let mut p = Program::default();
    let value = p.load(x, DType::F32, at(&[columns as i64, 1]));
    let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, value), DType::F32);
    let left = p.push(InstrKind::Binary(Binary::Sub, value, sum), DType::F32);
    let square = p.push(InstrKind::Binary(Binary::Mul, left, left), DType::F32);
    for (name, value) in [("left", left), ("squares", square)] {
        let across = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Rows, value), DType::F32);
        let output = bench.output(name, DType::F32, &[columns]);
        p.store(across, output, at(&[0, 1]));
    }
    let domain = Domain { axes: vec![rows, columns], outer: 0, rows: 1 };
    bench.kernel(Form::Reduce, domain, p.region, p.stores);
    products::case("short rows".into(), bench, 1e-4)
}

/// A sum across rows in enough chunks that several warps combine them.
fn many_rows() -> Case {
    let [rows, columns] = [600, 5];
    let (mut bench, mut random) = (Bench::default(), Random(7));
    let x = bench.input("x", random.tensor(&TensorType::new(DType::F32, [rows, columns]), -1.0, 1.0));
    let y = bench.output("y", DType::F32, &[columns]);
    let mut p = Program::default();
    let value = p.load(x, DType::F32, at(&[columns as i64, 1]));
    let sum = p.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Rows, value), DType::F32);
    p.store(sum, y, at(&[0, 1]));
    let domain = Domain { axes: vec![rows, columns], outer: 0, rows: 1 };
    bench.kernel(Form::Reduce, domain, p.region, p.stores);
    products::case("many rows".into(), bench, 1e-4)
}

/// Cases that should notice what is wrong. The one that noticed something last is asked first, with its functions alone, then a few, then
/// the others: compiling takes longest, and mistakes that the same case notices follow each other.
struct Judges {
    options: Options,
    cases: Vec<Case>,
}

/// Those that are asked before all others.
const FEW: usize = 6;

type ChangeFunction<'a> = &'a dyn Fn(&Function) -> String;
type ChangeHeader<'a> = &'a dyn Fn(&str, &str) -> String;

impl Judges {
    fn new(options: Options, cases: Vec<Case>) -> Self {
        Judges { options, cases }
    }

    /// Whether some case fails under some schedule.
    fn notice(&mut self, change_function: ChangeFunction<'_>, change_header: ChangeHeader<'_>) -> bool {
        let count = self.cases.len();
        let parts = [0..1, 1..FEW.min(count), FEW.min(count)..count];
        let failing = |part: Range<usize>| {
            let (options, cases) = (&self.options, &self.cases[part.clone()]);
            let found = position_of_failing(options, cases, change_function, change_header);
            found.map(|at| part.start + at)
        };
        let found = parts.into_iter().filter(|part| !part.is_empty()).find_map(failing);
        if let Some(at) = found {
            self.cases[..=at].rotate_right(1);
        }
        found.is_some()
    }

    /// As `notice`, where a header is wrong.
    fn notice_header(&mut self, change: ChangeHeader<'_>) -> bool {
        self.notice(&same, change)
    }

    /// As `notice`, where functions are wrong.
    fn notice_functions(&mut self, change: ChangeFunction<'_>) -> bool {
        self.notice(change, &unchanged)
    }

    fn notice_nothing(&mut self) {
        assert!(!self.notice(&same, &unchanged), "nothing is wrong yet");
    }
}

fn same(function: &Function) -> String {
    function.text.clone()
}

fn unchanged(_: &str, text: &str) -> String {
    text.into()
}

/// The first case that fails under some schedule.
fn position_of_failing(
    options: &Options,
    cases: &[Case],
    change_function: ChangeFunction<'_>,
    change_header: ChangeHeader<'_>,
) -> Option<usize> {
    let built = Built::new(options, cases, change_function, change_header);
    (0..cases.len()).find(|at| built.fails(cases, *at))
}

/// The programs of some cases, and the emulator of their functions.
struct Built {
    programs: Vec<Launches>,
    emulator: Emulator,
}

impl Built {
    fn new(
        options: &Options,
        cases: &[Case],
        change_function: ChangeFunction<'_>,
        change_header: ChangeHeader<'_>,
    ) -> Self {
        let mut renderer = Renderer::new(options.clone());
        let programs = cases.iter().map(|case| renderer.program(&case.plan).expect("renders")).collect();
        let change = |function: &Function| Function { text: change_function(function), ..function.clone() };
        let functions: Vec<_> = renderer.functions().iter().map(change).collect();
        let emulator = Emulator::build_with(&functions, change_header);
        Built { programs, emulator: emulator.unwrap_or_else(|error| panic!("{error}")) }
    }

    /// Whether a case fails under some schedule.
    fn fails(&self, cases: &[Case], at: usize) -> bool {
        let (case, program) = (slice::from_ref(&cases[at]), slice::from_ref(&self.programs[at]));
        let fails = |schedule| !failures(&self.emulator, case, program, schedule).is_empty();
        ThreadSchedule::ALL.into_iter().any(fails)
    }
}

/// Barriers of headers, each of which can be left out when a program runs, so that the headers are compiled once.
struct Switches {
    /// Holds the number of the one that is left out.
    file: NamedTempFile,
    /// What each one is.
    barriers: Vec<String>,
    /// Headers with the switches.
    headers: BTreeMap<&'static str, String>,
}

impl Switches {
    fn new(names: &[&str]) -> Self {
        let file = NamedTempFile::new().expect("a file");
        let (mut barriers, mut headers) = (vec![], BTreeMap::new());
        for (header, text) in HEADERS {
            let mut text = text.to_string();
            if header == "seam.cuh" {
                text += &format!(
                    "#include <cstdio>\nstatic const int left_out = [] {{\n  int number = -1;\n  FILE* file = fopen(\"{}\", \"r\");\n  \
                     if (!file || fscanf(file, \"%d\", &number) != 1) abort();\n  fclose(file);\n  return number;\n}}();\n",
                    file.path().display()
                );
            }
            for word in BARRIERS.iter().filter(|_| names.contains(&header)) {
                let mut parts = text.split(word);
                let mut switched = parts.next().expect("a first part").to_string();
                for (number, part) in parts.enumerate() {
                    switched += &format!("{{ if (left_out != {}) {{ {word} }} }}{part}", barriers.len());
                    barriers.push(format!("{word} number {number} of {header}"));
                }
                text = switched;
            }
            headers.insert(header, text);
        }
        Switches { file, barriers, headers }
    }

    /// Programs that begin from now on leave this one out, if there is one of that number.
    fn leave_out(&self, number: usize) {
        std::fs::write(self.file.path(), number.to_string()).expect("the file can be written");
    }
}

#[test]
fn every_missing_barrier_of_the_headers_is_noticed() {
    if is_skipped() {
        return;
    }
    let mut cases = products::few_small();
    cases.extend([long_rows(), short_rows(), many_rows(), strips::few_small()]);
    cases.extend(gemv::few_small());
    let switches = Switches::new(&["tile.cuh", "reduce.cuh", "chain.cuh", "gemv.cuh"]);
    let change = |name: &str, _: &str| switches.headers[name].clone();
    let built = Built::new(&Options::default(), &cases, &same, &change);
    // The case that noticed something last is asked first.
    let mut order: Vec<_> = (0..cases.len()).collect();
    let mut is_noticed = |number: usize| {
        switches.leave_out(number);
        let found = order.iter().position(|at| built.fails(&cases, *at));
        found.inspect(|at| order[..=*at].rotate_right(1)).is_some()
    };
    assert!(!is_noticed(switches.barriers.len()), "nothing is left out yet");
    let missed = switches.barriers.iter().enumerate().filter(|(number, _)| !is_noticed(*number));
    let missed: Vec<_> = missed.map(|(_, barrier)| barrier).collect();
    assert!(switches.barriers.len() > 20 && missed.is_empty(), "left out, and nothing fails: {missed:?}");
}

/// A text of a header, and what would be wrong in its place.
const WRONG: [(&str, &str, &str); 26] = [
    ("tile.cuh", "copy_wait<AHEAD - 1>", "copy_wait<AHEAD>"),
    ("tile.cuh", "fill_both(step + AHEAD)", "fill_both(step + AHEAD + 1)"),
    ("tile.cuh", "numbers[i] = loaded[i ^ swap]", "numbers[i] = loaded[i]"),
    ("tile.cuh", "load_matrices<P::ALONG_ROWS>", "load_matrices<false>"),
    ("tile.cuh", "IS_SECOND ? matrix / 2 : matrix % 2", "IS_SECOND ? matrix % 2 : matrix / 2"),
    ("tile.cuh", "IS_SECOND ? matrix % 2 : matrix / 2", "IS_SECOND ? matrix / 2 : matrix % 2"),
    ("tile.cuh", "load<true>(y[j], b,", "load<false>(y[j], b,"),
    // Without padding, results are the same, but lines of fragments lie in the same banks.
    ("tile.cuh", "ROWS + (PIECE < 8 ? 8 : PIECE)", "ROWS"),
    ("tile.cuh", "PADDED_ROWS : Tile::DEPTH + PIECE", "PADDED_ROWS : Tile::DEPTH"),
    ("tile.cuh", "return numbers.at[at];", "return numbers.at[0];"),
    ("tile.cuh", "numbers.at[at] = value;", "numbers.at[0] = value;"),
    ("tile.cuh", "at / 4 % 2 * 4", "at / 4 % 2 * 2"),
    ("tile.cuh", "of_rows[slot(at) * TERMS + term]", "of_rows[slot(at) * TERMS]"),
    ("chain.cuh", "load<true>(words, panel", "load<false>(words, panel"),
    ("chain.cuh", "copy_wait<STAGES - 2>", "copy_wait<STAGES - 1>"),
    ("chain.cuh", "(stage + STAGES - 1) % STAGES", "stage"),
    ("chain.cuh", "slot * 8 + threadIdx", "slot * 4 + threadIdx"),
    ("chain.cuh", "rows[i] = fragments + i * DEPTH / 4 + k / 4", "rows[i] = fragments + i * DEPTH / 4"),
    ("chain.cuh", "(ALONG_ROWS ? ROWS : DEPTH) + piece<T>()", "(ALONG_ROWS ? ROWS : DEPTH)"),
    ("gemv.cuh", "exchange<ENTRIES, 1>(entries)", "exchange<ENTRIES, 2>(entries)"),
    ("gemv.cuh", "if constexpr (BIT < LANES)", "if constexpr (BIT < LANES / 2)"),
    ("gemv.cuh", "warp / WARPS * WARPS * STEP", "0 * STEP"),
    ("gemv.cuh", "int other = 1; other < WARPS", "int other = 1; other < WARPS - 1"),
    ("gemv.cuh", "shuffle_xor(odd ? even_one : odd_one", "shuffle_xor(odd ? odd_one : even_one"),
    ("gemv.cuh", "piece >= PIECES) continue", "false) continue"),
    ("gemv.cuh", "term >= DEPTH) continue", "false) continue"),
];

#[test]
fn wrong_fragments_and_bank_conflicts_are_noticed() {
    if is_skipped() {
        return;
    }
    let mut cases = products::few_small();
    cases.push(strips::few_small());
    cases.extend(gemv::few_small());
    let mut judges = Judges::new(Options::default(), cases);
    for (header, right, wrong) in WRONG {
        let change = |name: &str, text: &str| match name == header {
            true => {
                assert_eq!(text.matches(right).count(), 1, "{right}");
                text.replace(right, wrong)
            }
            false => text.into(),
        };
        assert!(judges.notice_header(&change), "{wrong} in place of {right}");
    }
}

/// A text of a header, and what would be wrong in its place where warpgroups compute products: waits and fences that are missing, sums that
/// are read too early, panels that are filled too early, and matrices that lie otherwise.
const WRONG_OF_WARPGROUPS: [(&str, &str, &str); 16] = [
    ("tile.cuh", "Tile::publish();", ""),
    ("tile.cuh", "copy_wait<AHEAD - 1>();", ""),
    (
        "tile.cuh",
        "copy_wait<AHEAD - 1>();\n    Tile::publish();",
        "Tile::publish();\n    copy_wait<AHEAD - 1>();",
    ),
    ("tile.cuh", "Tile::publish();\n    __syncthreads();", "Tile::publish();"),
    ("tile.cuh", "tile.finish();", ""),
    ("tile.cuh", "AHEAD = STAGES - 1 - Tile::BEHIND", "AHEAD = STAGES - 1"),
    ("warpgroup.cuh", "products_begin();", ""),
    ("warpgroup.cuh", "products_commit();", ""),
    ("warpgroup.cuh", "products_wait<BEHIND>();", ""),
    ("warpgroup.cuh", "products_wait<0>();", "products_wait<1>();"),
    ("warpgroup.cuh", "number / PIECE ^ line % PIECE", "number / PIECE"),
    ("warpgroup.cuh", "NEXT_LINES = 8 * LINE", "NEXT_LINES = LINE"),
    ("warpgroup.cuh", "NEXT_ROWS = LINES * LINE", "NEXT_ROWS = LINES"),
    ("warpgroup.cuh", "SWIZZLE = 1", "SWIZZLE = 2"),
    ("warpgroup.cuh", "A::ALONG_ROWS, B::ALONG_ROWS>::start", "A::ALONG_ROWS, A::ALONG_ROWS>::start"),
    ("warpgroup.cuh", "warpgroup() / DOWN", "warpgroup() % DOWN"),
];

#[test]
fn wrong_products_of_warpgroups_are_noticed() {
    if is_skipped() {
        return;
    }
    let mut judges = [[128, 128], [64, 128]]
        .map(|tile| Judges::new(products::by_warpgroups(tile), products::warpgroup_products()));
    judges.iter_mut().for_each(Judges::notice_nothing);
    for (header, right, wrong) in WRONG_OF_WARPGROUPS {
        let change = |name: &str, text: &str| {
            assert!(name != header || text.matches(right).count() == 1, "{right}");
            if name == header { text.replace(right, wrong) } else { text.into() }
        };
        let is_noticed = judges.iter_mut().any(|judges| judges.notice_header(&change));
        assert!(is_noticed, "{wrong} in place of {right} in {header}");
    }
}

/// As above, where warpgroups compute chains.
const WRONG_OF_WARPGROUP_CHAINS: [(&str, &str, &str); 15] = [
    ("chain.cuh", "Tile::publish();", ""),
    ("chain.cuh", "copy_wait<STAGES - 2>();", ""),
    (
        "chain.cuh",
        "copy_wait<STAGES - 2>();\n    Tile::publish();",
        "Tile::publish();\n    copy_wait<STAGES - 2>();",
    ),
    ("chain.cuh", "Tile::publish();\n    __syncthreads();", "Tile::publish();"),
    ("warpgroup_chain.cuh", "products_begin();", ""),
    ("warpgroup_chain.cuh", "products_commit();", ""),
    ("warpgroup_chain.cuh", "products_wait<GROUPS>();", ""),
    ("warpgroup_chain.cuh", "slot / 2 * 64", "slot / 2 * 16"),
    ("warpgroup_chain.cuh", "of_rows.matrix(64 * part, k)", "of_rows.matrix(0, k)"),
    ("warpgroup_chain.cuh", "fragments + part * DEPTH / 4 + k / 4", "fragments + k / 4"),
    ("warpgroup_chain.cuh", "COLUMNS, false, P::ALONG_ROWS>", "COLUMNS, false, false>"),
    ("warpgroup_chain.cuh", "ALONG_ROWS ? DEPTH : ROWS>", "ROWS>"),
    ("warpgroup.cuh", "along / LINE * LINES", "along / LINE"),
    ("warpgroup.cuh", "k / LINE * LINES * LINE", "k / LINE * LINE"),
    ("warpgroup.cuh", "NEXT_ROWS = LINES * LINE", "NEXT_ROWS = LINES"),
];

/// What functions say of their chains' products, and what would be wrong in its place: entries that are read too early, and panels and
/// values that change too early.
const WRONG_IN_FUNCTIONS: [(&str, &str); 4] = [
    ("Tile::wait<Tile::PARTS - 1>();", "Tile::wait<Tile::PARTS>();"),
    ("Tile::wait<0>();", ""),
    ("Tile::begin();", ""),
    ("Tile::commit();", ""),
];

#[test]
fn wrong_chains_of_warpgroups_are_noticed() {
    if is_skipped() {
        return;
    }
    let mut judges = Judges::new(strips::by_warpgroups(), strips::few_of_warpgroups());
    judges.notice_nothing();
    for (header, right, wrong) in WRONG_OF_WARPGROUP_CHAINS {
        let change = |name: &str, text: &str| {
            assert!(name != header || text.matches(right).count() == 1, "{right}");
            if name == header { text.replace(right, wrong) } else { text.into() }
        };
        assert!(judges.notice_header(&change), "{wrong} in place of {right} in {header}");
    }
    for (right, wrong) in WRONG_IN_FUNCTIONS {
        let change = |function: &Function| {
            assert!(function.text.contains(right), "{right}");
            function.text.replace(right, wrong)
        };
        assert!(judges.notice_functions(&change), "{wrong} in place of {right}");
    }
}

/// Barriers that functions have of their own.
#[test]
fn a_missing_barrier_of_a_function_is_noticed() {
    if is_skipped() {
        return;
    }
    let change = |function: &Function| {
        assert!(function.text.contains(BARRIERS[0]), "there is a barrier to leave out");
        function.text.replacen(BARRIERS[0], "", 1)
    };
    assert!(Judges::new(Options::default(), vec![long_rows()]).notice_functions(&change));
}

/// A program that is right keeps its buffers' fences; the emulator sees one that does not.
#[test]
fn writes_outside_of_a_buffer_are_noticed() {
    if is_skipped() {
        return;
    }
    let mut bench = Bench::default();
    let y = bench.output("y", DType::F32, &[16]);
    let mut p = Program::default();
    let one = p.constant(1.0, DType::F32);
    p.store(one, y, at(&[1]));
    bench.kernel(Form::Map, Domain::flat([17]), p.region, p.stores);
    let mut plan = bench.plan();
    plan.arena_bytes = 64;
    assert!(matches!(plan.graph.buffers[0], Buffer { .. }));
    let case = Case {
        name: "outside".into(),
        plan,
        inputs: bench.inputs,
        expected: Default::default(),
        tolerance: 0.0,
    };
    assert!(Judges::new(Options::default(), vec![case]).notice(&same, &unchanged));
}
