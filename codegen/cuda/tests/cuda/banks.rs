//! Bank conflicts, from the addresses that the headers compute. Shared memory has 32 banks of 4 bytes; eight threads that write pieces
//! of 16 bytes, or 32 that read words, take as many turns as have one bank in common. Lines of `ldmatrix` are checked by the emulator
//! itself, in every test.

use crate::judge::is_skipped;
use crate::support::Bench;
use kernfusion_cuda::emulator::{Emulator, Job, ThreadSchedule};
use kernfusion_cuda::{Argument, Function, Launch, Launches, Parameter, StreamOp};
use kernfusion_ir::DType;
use kernfusion_ir::kernel::BufferOffset;

/// Bytes from the start of a panel: of all pieces in the order of the threads that copy them, then of those that each lane of a warp has in
/// such a place.
fn offsets(tile: &str, rows: usize, along_rows: bool, of_lane: [&str; 2]) -> (Vec<usize>, Vec<usize>) {
    let pieces = rows * 4;
    let [row, term] = of_lane;
    let text = format!(
        "#include \"tile.cuh\"

struct Operand {{
  static constexpr bool ALONG_ROWS = {along_rows};
}};

KERNEL __launch_bounds__(32, 1) addresses(int* g_offsets) {{
  using Tile = {tile};
  using Of = PanelOf<Tile, {rows}, Operand>;
  SHARED(Tile::Element, memory, {rows} * 64);
  const auto panel = Of::at(memory);
  if (threadIdx.x == 0)
    for (int at = 0; at < {pieces}; at++)
      g_offsets[at] = (int)((u8*)panel.at(Of::piece_row(at), Of::piece_term(at)) - (u8*)memory);
  g_offsets[{pieces} + threadIdx.x] = (int)((u8*)panel.at({row}, {term}) - (u8*)memory);
}}
"
    );
    let mut bench = Bench::default();
    let buffer = bench.output("offsets", DType::I32, &[pieces + 32]);
    let parameter = Parameter { name: "g_offsets".into(), dtype: DType::I32, is_written: true };
    let function = Function {
        name: "addresses".into(),
        text,
        parameters: vec![parameter],
        threads: 32,
        shared_bytes: 0,
        blocks: 1,
        is_packed: false,
    };
    let arguments = vec![Argument::Buffer(BufferOffset { buffer, offset: 0 })];
    let launch = Launch { kernels: vec![], function: 0, grid: [1, 1, 1], arguments, bytes: [0; 2] };
    let program = Launches { steps: vec![StreamOp::Launch(launch)], scratch_bytes: 0 };
    let emulator = Emulator::build(&[function]).unwrap_or_else(|error| panic!("{error}"));
    let job = Job { plan: &bench.plan(), program: &program, inputs: &bench.inputs };
    let found = emulator.run(&[job], ThreadSchedule::ALL[0]).unwrap_or_else(|error| panic!("{error}"));
    let mut offsets: Vec<usize> =
        found[0]["offsets"].to_f64().iter().map(|&offset| offset as usize).collect();
    let words = offsets.split_off(pieces);
    (offsets, words)
}

/// The most accesses of one group of threads to one bank, which is this wide.
fn ways(offsets: &[usize], together: usize, bytes: usize) -> usize {
    let of = |group: &[usize]| {
        let banks: Vec<_> = group.iter().map(|offset| offset / bytes % together).collect();
        (0..together).map(|bank| banks.iter().filter(|other| **other == bank).count()).max().unwrap_or(0)
    };
    offsets.chunks(together).map(of).max().unwrap_or(0)
}

#[test]
fn ways_are_counted() {
    assert_eq!(ways(&[0, 16, 32, 48, 64, 80, 96, 112], 8, 16), 1);
    assert_eq!(ways(&[0, 16, 32, 48, 80, 96, 112, 128], 8, 16), 2);
}

#[test]
fn copies_and_words_have_banks_of_their_own() {
    if is_skipped() {
        return;
    }
    let layouts = [(64, false), (128, false), (64, true), (128, true)];
    for ty in ["bf16", "tf32"] {
        for (rows, along_rows) in layouts {
            let fragment = ["Tile::group()", "Tile::member()"];
            let (pieces, words) = offsets(&format!("TensorTile<{ty}, 64, 64>"), rows, along_rows, fragment);
            let mut distinct = pieces.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), pieces.len(), "{ty} {rows} {along_rows}: every piece is copied once");
            assert_eq!(ways(&pieces, 8, 16), 1, "{ty} {rows} {along_rows}");
            // All others are read by `ldmatrix`.
            if ty == "tf32" && along_rows {
                assert_eq!(ways(&words, 32, 4), 1, "words, {ty} {rows} {along_rows}");
            }
        }
    }
    for (rows, along_rows) in layouts {
        let tile = "PlainTile<float, 128, 128>";
        let (_, words) = offsets(tile, rows, along_rows, ["Of::number_row()", "Of::number_term()"]);
        // What lies along rows is copied by pieces.
        assert!(along_rows || ways(&words, 32, 4) == 1, "numbers that are copied one by one, {rows}");
        // Half of a warp reads the same piece of rows twice, and all pieces of columns.
        for piece in ["Tile::slot_row(0)", "Tile::slot_column(0)"] {
            let (_, mut pieces) = offsets(tile, rows, along_rows, [piece, "0"]);
            for half in pieces.chunks_mut(16) {
                half.sort_unstable();
                let mut distinct = half.to_vec();
                distinct.dedup();
                assert!(distinct.len() <= 8 && ways(&distinct, 8, 16) == 1, "{piece}, {rows} {along_rows}");
            }
        }
    }
}
