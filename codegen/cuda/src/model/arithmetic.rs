//! What whole-number instructions compute, so that addresses, conditions and trip counts are known. Whatever is not here, all
//! floats among it, gives results that are unknown.

use super::lanes::{Condition, Word};
use super::sass::{Instruction, Operand, Place, ZERO};

/// Reads operands.
pub(super) trait Operands {
    fn word(&self, operand: &Operand) -> Word;
    /// The register after an operand's, or the upper half of its constant.
    fn upper(&self, operand: &Operand) -> Word;
    fn condition(&self, operand: &Operand) -> Condition;
    /// A special register.
    fn special(&self, name: &str) -> Word;
}

/// What an instruction writes, in the order of its results.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// The register of the result, and those after it.
    pub(super) words: Vec<Word>,
    /// Its predicates, in order.
    pub(super) conditions: Vec<Condition>,
}

impl Results {
    fn word(word: Word) -> Option<Self> {
        Some(Results { words: vec![word], conditions: vec![] })
    }

    fn wide(low: Word, high: Word) -> Option<Self> {
        Some(Results { words: vec![low, high], conditions: vec![] })
    }
}

/// The operands of an instruction by what they are for.
struct Parts<'i> {
    /// Predicates that it writes beside its result, if it has any.
    written: usize,
    sources: Vec<&'i Operand>,
    /// Predicates at the end.
    carries: Vec<&'i Operand>,
}

fn is_predicate(operand: &Operand) -> bool {
    matches!(operand.place, Place::Predicate(_) | Place::UniformPredicate(_))
}

/// The operands after the first one: predicates that are written, sources, predicates that are read.
fn parts(instruction: &Instruction) -> Parts<'_> {
    let rest = instruction.operands.get(1..).unwrap_or_default();
    let written = rest.iter().take_while(|operand| is_predicate(operand)).count();
    let (sources, carries) = rest[written..].iter().partition(|operand| !is_predicate(operand));
    Parts { written, sources, carries }
}

/// What an instruction computes; `None` if it is not known here.
pub(super) fn results(instruction: &Instruction, state: &impl Operands) -> Option<Results> {
    let name = instruction.name();
    let source = |at: usize| instruction.operands.get(at).map(|operand| state.word(operand));
    match name.strip_prefix('U').unwrap_or(name) {
        "MOV" | "MOV32I" => Results::word(source(1)?),
        "IADD3" => sum(instruction, state),
        "VIADD" | "IADD" => {
            Results::word(Word::of_three([source(1)?, source(2)?, Word::of(0)], |a, b, _| a.wrapping_add(b)))
        }
        "IMAD" => multiplied(instruction, state),
        "LEA" => scaled(instruction, state),
        "SHF" => shifted(instruction, state),
        "LOP3" => logic(instruction, state),
        "PLOP3" => conditions(instruction, state),
        "ISETP" => compared(instruction, state),
        "SEL" => {
            let condition = state.condition(instruction.operands.get(3)?);
            Results::word(selected(condition, source(1)?, source(2)?))
        }
        "IMNMX" | "VIMNMX" => {
            let smaller = state.condition(instruction.operands.get(3)?);
            let (is_unsigned, is_clamped) = (instruction.has("U32"), instruction.has("RELU"));
            let order = |a: u32, b: u32| if is_unsigned { a < b } else { (a as i32) < b as i32 };
            let [a, b] = [source(1)?, source(2)?];
            let pick = |least: bool| {
                let chosen =
                    Word::of_three([a, b, Word::of(0)], |a, b, _| if order(a, b) == least { a } else { b });
                if is_clamped { chosen.map(|bits| (bits as i32).max(0) as u32) } else { chosen }
            };
            Results::word(selected(smaller, pick(true), pick(false)))
        }
        "IABS" => Results::word(source(1)?.map(|bits| (bits as i32).unsigned_abs())),
        "PRMT" => Results::word(Word::of_three([source(1)?, source(2)?, source(3)?], permuted)),
        "R2UR" => Results::word(source(1)?),
        "S2R" | "S2UR" => match &instruction.operands.get(1)?.place {
            Place::Named(special) => Results::word(state.special(special)),
            _ => None,
        },
        "CS2R" if matches!(&instruction.operands.get(1)?.place, Place::Named(name) if name == "SRZ") => {
            Results::wide(Word::of(0), Word::of(0))
        }
        "LDC" => {
            let constant = instruction.operands.get(1)?;
            match instruction.width() {
                8 => Results::wide(state.word(constant), state.upper(constant)),
                _ => Results::word(state.word(constant)),
            }
        }
        // Two halves, which the compiler also takes for other bits.
        "HFMA2" if is_zero(instruction.operands.get(1)?) && is_zero(instruction.operands.get(2)?) => {
            let half = |at: usize| Some(half_bits(f32::from_bits(source(at)?.bits[0])));
            Results::word(Word::of(half(3)? << 16 | half(4)?))
        }
        // Whether a division needs its slow path: hardly ever.
        "FCHK" => Some(Results { words: vec![], conditions: vec![Condition::of(false)] }),
        _ => None,
    }
}

fn is_zero(operand: &Operand) -> bool {
    operand.place == Place::Register(ZERO)
}

/// The bits of an `f16` that has exactly this value.
fn half_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let (sign, exponent, fraction) =
        (bits >> 16 & 0x8000, (bits >> 23 & 255) as i32 - 112, bits & 0x007f_ffff);
    match exponent {
        143 => sign | 0x7c00 | fraction >> 13,
        1..=30 => sign | (exponent as u32) << 10 | fraction >> 13,
        -9..=0 => sign | (fraction | 0x0080_0000) >> (14 - exponent),
        _ => sign,
    }
}

fn selected(condition: Condition, yes: Word, no: Word) -> Word {
    let mut word = no;
    word.merge(yes, condition.bits);
    word.known &= condition.known;
    word
}

/// `IADD3 Rd, [carry out,] Ra, Rb, Rc [, carry in]`.
fn sum(instruction: &Instruction, state: &impl Operands) -> Option<Results> {
    let Parts { written, sources, carries } = parts(instruction);
    // What is subtracted is inverted, and one is added, which may carry.
    let term = |at: usize| {
        let operand = *sources.get(at)?;
        let plain = state.word(&Operand { negated: false, ..operand.clone() });
        Some((if operand.negated { plain.map(|bits| !bits) } else { plain }, u64::from(operand.negated)))
    };
    let [(a, one), (b, two), (c, three)] = [term(0)?, term(1)?, term(2)?];
    let carry = carried(instruction, state, &carries)?;
    let all = |lane: usize| {
        let terms = [a, b, c].map(|word| u64::from(word.bits[lane]));
        terms.iter().sum::<u64>() + one + two + three + u64::from(carry.bits >> lane & 1)
    };
    let known = a.known & b.known & c.known & carry.known;
    let low = Word { known, ..Word::lanes(|lane| all(lane) as u32) };
    let high = Word { known, ..Word::lanes(|lane| (all(lane) >> 32) as u32) };
    let outs = [high.condition(|bits| bits & 1 == 1), high.condition(|bits| bits & 2 == 2)];
    Some(Results { words: vec![low], conditions: outs[..written.min(2)].to_vec() })
}

/// The carry that an extended sum begins with.
fn carried(instruction: &Instruction, state: &impl Operands, carries: &[&Operand]) -> Option<Condition> {
    match (instruction.has("X"), carries) {
        (false, _) => Some(Condition::of(false)),
        (true, [first, ..]) => Some(state.condition(first)),
        (true, []) => None,
    }
}

/// `IMAD Rd, Ra, Rb, Rc`, of which `WIDE` has 64 bits, `HI` their upper half.
fn multiplied(instruction: &Instruction, state: &impl Operands) -> Option<Results> {
    let Parts { written, sources, carries } = parts(instruction);
    let [a, b, c] = sources[..] else { return None };
    let (is_wide, is_high) = (instruction.has("WIDE"), instruction.has("HI"));
    let carry = carried(instruction, state, &carries)?;
    let upper = if is_wide || is_high { state.upper(c) } else { Word::of(0) };
    let [a, b, c] = [a, b, c].map(|operand| state.word(operand));
    let is_unsigned = instruction.has("U32");
    let product = |lane: usize| {
        let [a, b] = [a.bits[lane], b.bits[lane]];
        let product = match is_unsigned {
            true => u64::from(a) * u64::from(b),
            false => (i64::from(a as i32) * i64::from(b as i32)) as u64,
        };
        let addend = u64::from(upper.bits[lane]) << 32 | u64::from(c.bits[lane]);
        u128::from(product) + u128::from(addend) + u128::from(carry.bits >> lane & 1)
    };
    let known = a.known & b.known & c.known & upper.known & carry.known;
    let part = |shift: u32| Word { known, ..Word::lanes(|lane| (product(lane) >> shift) as u32) };
    let words = match (is_wide, is_high) {
        (true, _) => vec![part(0), part(32)],
        (false, true) => vec![part(32)],
        (false, false) => vec![part(0)],
    };
    let outs = vec![part(64).condition(|bits| bits & 1 == 1); written];
    Some(Results { words, conditions: outs })
}

/// `LEA Rd, [carry out,] Ra, Rb, shift`: (Ra << shift) + Rb; of `HI` the upper half, with Rc above Ra.
fn scaled(instruction: &Instruction, state: &impl Operands) -> Option<Results> {
    let Parts { written, sources, carries } = parts(instruction);
    let carry = carried(instruction, state, &carries)?;
    let is_high = instruction.has("HI");
    let word = |at: usize| sources.get(at).map(|operand| state.word(operand));
    let [low, added] = [word(0)?, word(1)?];
    let high = match (is_high, instruction.has("SX32")) {
        (false, _) => Word::of(0),
        (true, true) => low.map(|bits| ((bits as i32) >> 31) as u32),
        (true, false) => word(2)?,
    };
    let shift = state.word(sources.last()?);
    let shift = shift.bits[0] & 31;
    let all = |lane: usize| {
        let whole = (u64::from(high.bits[lane]) << 32 | u64::from(low.bits[lane])) << shift;
        let part = if is_high { whole >> 32 } else { u64::from(whole as u32) };
        part + u64::from(added.bits[lane]) + u64::from(carry.bits >> lane & 1)
    };
    let known = low.known & added.known & high.known & carry.known;
    let word = Word { known, ..Word::lanes(|lane| all(lane) as u32) };
    let over = Word { known, ..Word::lanes(|lane| (all(lane) >> 32) as u32) };
    Some(Results { words: vec![word], conditions: vec![over.condition(|bits| bits != 0); written] })
}

/// `SHF.L Rd, low, shift, high` and `SHF.R`: 64 bits, of which the lower half is taken, or the upper one with `HI`.
fn shifted(instruction: &Instruction, state: &impl Operands) -> Option<Results> {
    let word = |at: usize| instruction.operands.get(at).map(|operand| state.word(operand));
    let (is_left, is_high) = (instruction.has("L"), instruction.has("HI"));
    let is_signed = instruction.has("S32") || instruction.has("S64");
    let is_double = instruction.has("U64") || instruction.has("S64");
    let most = if is_double { 63 } else { 32 };
    let result = Word::of_three([word(1)?, word(2)?, word(3)?], |low, shift, high| {
        let shift = shift.min(most);
        let whole = u64::from(high) << 32 | u64::from(low);
        let whole = match (is_left, is_signed) {
            (true, _) => whole << shift,
            (false, true) => (whole as i64 >> shift) as u64,
            (false, false) => whole >> shift,
        };
        if is_high { (whole >> 32) as u32 } else { whole as u32 }
    });
    Results::word(result)
}

/// `LOP3 [P,] Rd, Ra, Rb, Rc, table, P`.
fn logic(instruction: &Instruction, state: &impl Operands) -> Option<Results> {
    let operands = &instruction.operands[usize::from(is_predicate(instruction.operands.first()?))..];
    let word = |at: usize| operands.get(at).map(|operand| state.word(operand));
    let [a, b, c, table] = [word(1)?, word(2)?, word(3)?, word(4)?];
    let table = table.bits[0];
    let mut result = Word::of_three([a, b, c], |a, b, c| {
        (0..8).filter(|index| table >> index & 1 == 1).fold(0, |bits, index| {
            let of = |word: u32, bit: u32| if index >> bit & 1 == 1 { word } else { !word };
            bits | of(a, 2) & of(b, 1) & of(c, 0)
        })
    });
    // A mask of zeros makes anything known.
    if table == 0xc0 {
        let zero = |word: Word| word.condition(|bits| bits == 0);
        let [a, b] = [zero(a), zero(b)];
        let cleared = a.bits & a.known | b.bits & b.known;
        result.merge(Word::of(0), cleared);
    }
    let conditions = vec![result.condition(|bits| bits != 0)];
    Some(Results { words: vec![result], conditions })
}

/// `PLOP3 P0, P1, Pa, Pb, Pc, table, table`.
fn conditions(instruction: &Instruction, state: &impl Operands) -> Option<Results> {
    let condition = |at: usize| instruction.operands.get(at).map(|operand| state.condition(operand));
    let table = |at: usize| instruction.operands.get(at).map(|operand| state.word(operand).bits[0]);
    let sources = [condition(2)?, condition(3)?, condition(4)?];
    let of = |table: u32| Condition::table(table, sources);
    Some(Results { words: vec![], conditions: vec![of(table(5)?), of(table(6)?)] })
}

/// `ISETP.GE.AND P0, P1, Ra, Rb, P`: P0 = (Ra ≥ Rb) ∧ P, P1 = ¬(Ra ≥ Rb) ∧ P. With `EX`, a last predicate decides where both are equal.
fn compared(instruction: &Instruction, state: &impl Operands) -> Option<Results> {
    let operands = &instruction.operands;
    let [a, b] = [state.word(operands.get(2)?), state.word(operands.get(3)?)];
    let is_unsigned = instruction.has("U32");
    let relation = instruction.opcode.get(1)?.as_str();
    let lower = match instruction.has("EX") {
        true => state.condition(operands.get(5)?),
        false => Condition::of(matches!(relation, "EQ" | "GE" | "LE")),
    };
    let holds = |lane: usize| {
        let [a, b] = [a.bits[lane], b.bits[lane]];
        let order = if is_unsigned { a.cmp(&b) } else { (a as i32).cmp(&(b as i32)) };
        let equal = lower.bits >> lane & 1 == 1;
        match relation {
            "EQ" => order.is_eq() && equal,
            "NE" => order.is_ne() || equal,
            "LT" | "LE" => order.is_lt() || order.is_eq() && equal,
            "GT" | "GE" => order.is_gt() || order.is_eq() && equal,
            _ => relation == "T",
        }
    };
    let known = a.known & b.known & lower.known;
    let first = Condition { known, ..Word::lanes(|lane| u32::from(holds(lane))).condition(|bits| bits == 1) };
    let other = state.condition(operands.get(4)?);
    let joined = |condition: Condition| {
        let table = match () {
            () if instruction.has("AND") => 0xc0,
            () if instruction.has("OR") => 0xfc,
            () => 0x3c,
        };
        let mut joined = Condition::table(table, [condition, other, Condition::of(true)]);
        // One side may decide alone.
        let decided = match table {
            0xc0 => !condition.bits & condition.known | !other.bits & other.known,
            0xfc => condition.bits & condition.known | other.bits & other.known,
            _ => 0,
        };
        joined.merge(Condition::of(table == 0xfc), decided);
        joined
    };
    Some(Results { words: vec![], conditions: vec![joined(first), joined(first.not())] })
}

/// Bytes of eight, by the four digits of a selector; a digit's upper bit repeats the byte's sign.
fn permuted(low: u32, selector: u32, high: u32) -> u32 {
    let bytes = u64::from(high) << 32 | u64::from(low);
    (0..4).fold(0, |word, at| {
        let digit = selector >> (4 * at) & 15;
        let byte = (bytes >> (8 * (digit & 7))) as u8;
        let byte = if digit & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        word | u32::from(byte) << (8 * at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Sass;

    /// Registers are ten times their numbers; R100 and what follows are unknown; P0 holds, P1 does not, P2 is unknown.
    struct Registers;

    impl Operands for Registers {
        fn word(&self, operand: &Operand) -> Word {
            let word = match operand.place {
                Place::Register(ZERO) => Word::of(0),
                Place::Register(number) if number < 100 => Word::of(10 * u32::from(number)),
                Place::Immediate(bits) => Word::of(bits),
                _ => Word::unknown(),
            };
            let word = if operand.inverted { word.map(|bits| !bits) } else { word };
            if operand.negated { word.map(u32::wrapping_neg) } else { word }
        }

        fn upper(&self, operand: &Operand) -> Word {
            match operand.place {
                Place::Register(number) if number < 99 => Word::of(10 * u32::from(number) + 10),
                Place::Register(ZERO) => Word::of(0),
                _ => Word::unknown(),
            }
        }

        fn condition(&self, operand: &Operand) -> Condition {
            let condition = match operand.place {
                Place::Predicate(0 | 7) => Condition::of(true),
                Place::Predicate(1) => Condition::of(false),
                _ => Condition::unknown(),
            };
            if operand.inverted { condition.not() } else { condition }
        }

        fn special(&self, _: &str) -> Word {
            Word::lanes(|lane| lane as u32)
        }
    }

    fn results_of(text: &str) -> Option<Results> {
        let listing = format!("/*0000*/ {text} ; /* 0x0 */\n/* 0x0 */\n");
        results(&Sass::parse(&listing).expect(text).instructions[0], &Registers)
    }

    /// The first lane's words, unknown ones left out.
    fn words(text: &str) -> Vec<Option<u32>> {
        let found = results_of(text).unwrap_or_default();
        found.words.iter().map(|word| (word.known & 1 == 1).then_some(word.bits[0])).collect()
    }

    fn holds(text: &str) -> Vec<Option<bool>> {
        let found = results_of(text).unwrap_or_default();
        found.conditions.iter().map(|it| (it.known & 1 == 1).then_some(it.bits & 1 == 1)).collect()
    }

    #[track_caller]
    fn check(text: &str, expected: u32) {
        assert_eq!(words(text), [Some(expected)], "{text}");
    }

    #[test]
    fn whole_numbers_are_computed() {
        check("MOV R0, 0x7", 7);
        check("IADD3 R0, R1, 0x5, -R2", 10u32.wrapping_add(5).wrapping_sub(20));
        check("IMAD R0, R1, R2, R3", 230);
        check("IMAD.HI R0, R1, 0x2aaaaaab, RZ", 1);
        check("IMAD.HI R0, -R1, 0x2aaaaaab, RZ", u32::MAX - 1);
        check("IMAD.HI.U32 R0, R1, 0xcccccccd, RZ", 8);
        assert_eq!(words("IMAD.WIDE R0, -R1, 0x4, R2"), [Some(20u32.wrapping_sub(40)), Some(29)]);
        check("LEA R0, R1, R2, 0x3", 100);
        check("LEA.HI R0, R1, R2, R3, 0x4", 500);
        check("LEA.HI.SX32 R0, -R1, R2, 0x1f", 15);
        check("SHF.L.U32 R0, R1, 0x2, RZ", 40);
        check("SHF.R.U32.HI R0, RZ, 0x1, R1", 5);
        check("SHF.R.S32.HI R0, RZ, 0x1f, -R1", u32::MAX);
        check("SHF.L.U64.HI R0, -R1, 0x4, R2", 20 << 4 | 0xf);
        check("LOP3.LUT R0, R1, 0x6, RZ, 0xc0, !PT", 10 & 6);
        check("LOP3.LUT R0, R1, 0x6, R2, 0x96, !PT", 10 ^ 6 ^ 20);
        check("SEL R0, R1, R2, !P0", 20);
        check("IMNMX R0, -R1, R2, PT", 10u32.wrapping_neg());
        check("IMNMX.U32 R0, -R1, R2, PT", 20);
        check("VIMNMX.RELU R0, -R1, 0x40, PT", 0);
        check("VIMNMX.RELU R0, R1, 0x40, PT", 10);
        check("IABS R0, -R1", 10);
        check("PRMT R0, 0x3210, 0x5410, 0x7654", 0x7654_3210);
        check("PRMT R0, 0x80, 0x8888, RZ", u32::MAX);
        check("HFMA2.MMA R0, -RZ, RZ, 0, 5.9604644775390625e-08", 1);
        check("HFMA2.MMA R0, -RZ, RZ, 1.875, 0.5", 0x3f80_3800);
        check("VIADD R0, R1, 0xffffffff", 9);
    }

    #[test]
    fn carries_go_from_word_to_word() {
        assert_eq!(holds("IADD3 R0, P0, R1, -0x1, RZ"), [Some(true)]);
        assert_eq!(holds("IADD3 R0, P0, R1, -R2, RZ"), [Some(false)]);
        assert_eq!(holds("IADD3 R0, P0, R2, -R1, RZ"), [Some(true)]);
        check("IADD3.X R0, R1, R2, RZ, P0, !PT", 31);
        check("IMAD.X R0, RZ, RZ, R1, P1", 10);
        assert_eq!(holds("LEA R0, P0, R1, -0x1, 0x0"), [Some(true)]);
        check("LEA.HI.X R0, R1, R2, R3, 0x2, P0", 20 + (30 << 2) + 1);
    }

    #[test]
    fn conditions_compare() {
        assert_eq!(holds("ISETP.GE.AND P0, P3, R1, 0xa, PT"), [Some(true), Some(false)]);
        assert_eq!(holds("ISETP.GT.AND P0, PT, -R1, R2, PT"), [Some(false), Some(true)]);
        assert_eq!(holds("ISETP.GT.U32.AND P0, PT, -R1, R2, PT"), [Some(true), Some(false)]);
        assert_eq!(holds("ISETP.LT.OR P0, PT, R2, R1, P0"), [Some(true), Some(true)]);
        assert_eq!(holds("ISETP.GE.AND.EX P0, PT, R1, 0xa, PT, P1")[0], Some(false));
        assert_eq!(holds("ISETP.NE.AND.EX P0, PT, R1, 0xa, PT, P0")[0], Some(true));
        // One side decides, or nothing does.
        assert_eq!(holds("ISETP.EQ.AND P0, PT, R100, 0xa, P1")[0], Some(false));
        assert_eq!(holds("ISETP.EQ.OR P0, PT, R100, 0xa, P0")[0], Some(true));
        assert_eq!(holds("ISETP.EQ.AND P0, PT, R100, 0xa, PT")[0], None);
        assert_eq!(holds("PLOP3.LUT P0, P3, P0, P1, PT, 0x80, 0x8"), [Some(false), Some(false)]);
        assert_eq!(holds("PLOP3.LUT P0, PT, P0, P2, PT, 0xf0, 0x0")[0], Some(true));
        assert_eq!(holds("LOP3.LUT P0, RZ, R1, 0x4, RZ, 0xc0, !PT"), [Some(false)]);
    }

    #[test]
    fn what_is_in_memory_is_unknown() {
        assert_eq!(words("IADD3 R0, R100, 0x1, RZ"), [None]);
        assert_eq!(words("LOP3.LUT R0, R100, RZ, RZ, 0xc0, !PT"), [Some(0)]);
        for text in ["LDG.E R0, [R2.64]", "FADD R0, R1, R2", "MUFU.RCP R0, R1"] {
            assert!(results_of(text).is_none(), "{text}");
        }
    }
}
