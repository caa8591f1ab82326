//! Warps of our own functions, whose counts were taken from the listings by hand.

use super::*;

/// Executes a warp of one of our functions, whose listing is in `listings`; the expected counts were taken from it by hand.
fn trace(listing: &str, card: &str, [threads, blocks]: [usize; 2], [block, warp]: [usize; 2]) -> Trace {
    let sass = Sass::parse(listing).expect("a listing");
    let card = Card::named(card).expect("a card");
    let position = Position { threads, grid: [blocks as u32, 1, 1], block: [block as u32, 0, 0], warp };
    run(&sass, card, position, Memory { latency: card.latency.l2, kept: 64 })
}

/// 35 instructions up to the last one. 32 numbers of four bytes are read, and 32 of two written, each row of 768 from its beginning.
#[test]
fn a_map_is_executed_once() {
    let trace = trace(include_str!("listings/map.sass"), "h200", [256, 49_152], [17, 3]);
    assert_eq!((trace.instructions, trace.assumed, trace.is_whole), (35, 0, true));
    assert_eq!((trace.sectors, trace.in_flight), ([4.0, 2.0], 1));
    // 16,384 · 768 points are 49,152 blocks: the one after them has nothing to do.
    let beyond = super::tests::trace(include_str!("listings/map.sass"), "h200", [256, 49_153], [49_152, 0]);
    assert_eq!((beyond.instructions, beyond.sectors), (6, [0.0, 0.0]));
}

/// 16 instructions, 96 times 57 for eight rows each, 5 at the end. The eight indices of a turn are one piece of memory, and each of the
/// eight rows that may be added is four; four more are written.
#[test]
fn a_loop_runs_as_often_as_on_a_card() {
    let listing = include_str!("listings/scatter.sass");
    let found = trace(listing, "h200", [256, 1], [0, 0]);
    assert_eq!(found.instructions, 16 + 96 * 57 + 5);
    assert_eq!(found.sectors, [96.0 * (1.0 + 8.0 * 4.0), 4.0]);
    // Threads from 128 on leave at the sixth instruction.
    assert_eq!(trace(listing, "h200", [256, 1], [0, 4]).instructions, 6);
}

/// Eight rows in the first block, four in the second: 5 instructions, 32 times 5, 9, for each row 16 and 32 times 41, then 7, 32 times
/// 12, and 1.
#[test]
fn loops_in_loops_depend_on_the_block() {
    let listing = include_str!("listings/chunks.sass");
    let instructions = |rows: u64| 5 + 32 * 5 + 9 + rows * (16 + 32 * 41) + 7 + 32 * 12 + 1;
    let of_block = |block| trace(listing, "h200", [256, 2], [block, 1]);
    assert_eq!(of_block(0).instructions, instructions(8));
    assert_eq!(of_block(1).instructions, instructions(4));
    // Seven loads from memory before the first wait, and those of a row after another.
    assert!(of_block(0).in_flight >= 7, "{}", of_block(0).in_flight);
}

/// How often the loop runs is in memory: 28 instructions before it, 17 in it with 8 products, 41 after it.
#[test]
fn a_loop_that_depends_on_memory_runs_once_and_says_so() {
    let trace = trace(include_str!("listings/products.sass"), "a100", [256, 1], [0, 0]);
    assert_eq!((trace.instructions, trace.assumed), (28 + 17 + 41, 2));
    assert_eq!((trace.products, trace.operations), (8, 8 * 2 * 16 * 8 * 16));
    assert_eq!(trace.busy[Pipe::Tensor as usize], 8.0 * 8.0);
    // Each sum waits for its product.
    assert!(trace.alone >= 33.0, "{}", trace.alone);
}

/// A listing of two words for each instruction, as `nvdisasm -hex` has them.
fn listing(instructions: &[(&str, u64)]) -> String {
    let line = |(at, (text, control)): (usize, &(&str, u64))| {
        format!("/*{:04x}*/ {text} ; /* 0x0 */\n/* {control:#018x} */\n", 16 * at)
    };
    instructions.iter().enumerate().map(line).collect()
}

/// Control codes: a stall, the barrier of the result, the barriers that are waited for.
fn control(stall: u64, result: u64, waits: u64) -> u64 {
    stall << 41 | result << 46 | 7 << 49 | waits << 52
}

#[test]
fn time_goes_on_as_control_codes_say() {
    const NONE: u64 = 7;
    let card = Card::named("h100").expect("a card");
    let alone = |instructions: &[(&str, u64)]| trace(&listing(instructions), "h100", [32, 1], [0, 0]).alone;
    let exit = ("EXIT", control(1, NONE, 0));
    // Stalls add up.
    assert_eq!(alone(&[("FADD R0, R1, R2", control(4, NONE, 0)), ("NOP", control(9, NONE, 0)), exit]), 14.0);
    // A load that is waited for, and one that is not.
    let load = ("LDG.E R0, [R2.64]", control(2, 0, 0));
    let waits = ("FADD R1, R0, R0", control(1, NONE, 1));
    assert_eq!(alone(&[load, waits, exit]), card.latency.l2 + 2.0);
    assert_eq!(alone(&[load, exit]), 3.0);
    // Two loads before the wait are under way together; one after the other takes twice as long.
    let second = ("LDG.E R4, [R6.64]", control(2, 1, 0));
    let waits_for_both = ("FADD R1, R0, R4", control(1, NONE, 3));
    assert_eq!(alone(&[load, second, waits_for_both, exit]), 2.0 + card.latency.l2 + 2.0);
    let waits_for_second = ("FADD R1, R4, R4", control(1, NONE, 2));
    assert_eq!(alone(&[load, waits, second, waits_for_second, exit]), 2.0 * (card.latency.l2 + 1.0) + 1.0);
}

/// A condition that two instructions read is still known: 16 turns of five instructions, with one before and one after.
#[test]
fn a_loop_goes_on_whose_condition_is_read_twice() {
    let logic = |to: &'static str| (to, control(1, 7, 0));
    let loop_ = [
        ("UMOV UR4, URZ", control(1, 7, 0)),
        ("UIADD3 UR4, UR4, 0x40, URZ", control(1, 7, 0)),
        ("UISETP.GE.U32.AND UP0, UPT, UR4, 0x400, UPT", control(1, 7, 0)),
        logic("PLOP3.LUT P1, PT, PT, PT, UP0, 0x40, 0x0"),
        logic("PLOP3.LUT P0, PT, PT, PT, UP0, 0x40, 0x0"),
        ("@P0 BRA `(.L_x_0)", control(1, 7, 0)),
        ("EXIT", control(1, 7, 0)),
    ];
    let found = trace(&listing(&loop_).replace("/*0010*/", ".L_x_0:\n/*0010*/"), "h200", [32, 1], [0, 0]);
    assert_eq!((found.instructions, found.assumed), (1 + 16 * 5 + 1, 0));
}

/// A copy waits for its group: all but the last one have to be there.
#[test]
fn copies_are_waited_for_by_groups() {
    const NONE: u64 = 7;
    let copy = ("LDGSTS.E.BYPASS.128 [R0], [R2.64]", control(1, NONE, 0));
    let group = ("LDGDEPBAR", control(1, 0, 0));
    let exit = ("EXIT", control(1, NONE, 0));
    let wait = |left: &'static str| (left, control(1, NONE, 0));
    let alone = |last| {
        let work = ("NOP", control(15, NONE, 0));
        trace(&listing(&[copy, group, work, copy, group, wait(last), exit]), "h100", [32, 1], [0, 0]).alone
    };
    // Issued in cycle 0 and 17.
    assert_eq!(alone("DEPBAR.LE SB0, 0x1"), 263.0 + 2.0);
    assert_eq!(alone("DEPBAR.LE SB0, 0x0"), 17.0 + 263.0 + 2.0);
}
