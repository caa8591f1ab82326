//! Machine code (SASS) as `nvdisasm -hex` prints it: instructions with their operands, and what the compiler tells the scheduler.
//!
//! ```text
//!         /*0270*/              @!P0 IMAD.WIDE R4, R0, R5, c[0x0][0x160] ;  /* 0x0000580000048625 */
//!                                                                           /* 0x001fc800078e0205 */
//! .L_x_1:
//! ```
//!
//! The upper word says how many cycles the warp waits before its next instruction (bits 41 to 44), which of six barriers is released when
//! the result is there (46 to 48) or the operands have been read (49 to 51), and which barriers the instruction waits for (52 to 57): the
//! control codes of Volta and later, as described in Jia, Maggioni, Staiger, Scarpazza, "Dissecting the NVIDIA Volta GPU architecture via
//! microbenchmarking", 2018.

use super::ModelError;
use std::collections::BTreeMap;

/// The instructions of a function, in order of their addresses.
#[derive(Debug, Clone, PartialEq)]
pub struct Sass {
    /// Sixteen bytes each.
    pub instructions: Vec<Instruction>,
}

/// An instruction.
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// The predicate that a lane needs to execute it.
    pub guard: Option<Operand>,
    /// The name and its modifiers, such as `IMAD`, `WIDE`, `U32`.
    pub opcode: Vec<String>,
    /// In the order of the text; results come first.
    pub operands: Vec<Operand>,
    /// What the scheduler is told.
    pub control: Control,
}

/// What the compiler tells the scheduler about an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Control {
    /// Cycles before the warp's next instruction.
    pub stall: u32,
    /// The barrier that is released when the result is there.
    pub result: Option<u8>,
    /// The barrier that is released when the operands have been read.
    pub read: Option<u8>,
    /// The barriers, a bit each, that must be released before.
    pub waits: u8,
}

/// An operand.
#[derive(Debug, Clone, PartialEq)]
pub struct Operand {
    /// What it is.
    pub place: Place,
    /// Whether its sign is turned.
    pub negated: bool,
    /// Whether its bits, or a predicate, are inverted.
    pub inverted: bool,
    /// Whether its magnitude is taken.
    pub absolute: bool,
}

/// Where an operand is.
#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    /// A register; 255 is zero.
    Register(u8),
    /// A register that all lanes share; 63 is zero.
    Uniform(u8),
    /// A predicate; 7 is true.
    Predicate(u8),
    /// A predicate that all lanes share; 7 is true.
    UniformPredicate(u8),
    /// A number in the instruction.
    Immediate(u32),
    /// A word of the first constant bank, in which a launch's arguments are, or of a bank that is not known here.
    Constant(Option<u32>),
    /// An address in memory.
    Memory(Address),
    /// The number of an instruction.
    Target(usize),
    /// A special register, such as `SR_TID.X`, or anything else that only its instruction understands.
    Named(String),
}

/// The sum of what stands between brackets.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Address {
    /// A register, and whether it has 64 bits.
    pub register: Option<(u8, bool)>,
    /// What the register is multiplied by.
    pub scale: u32,
    /// A register that all lanes share.
    pub uniform: Option<u8>,
    /// In bytes.
    pub offset: i64,
}

/// The register that is always zero, or its uniform sibling; the predicate that is always true.
pub(super) const ZERO: u8 = 255;
/// The uniform register that is always zero.
pub(super) const UNIFORM_ZERO: u8 = 63;
/// The predicate that is always true.
pub(super) const TRUE: u8 = 7;

impl Sass {
    /// Reads the code of a cubin's only function from the text of `nvdisasm -c -hex`.
    ///
    /// # Errors
    /// The text has no instruction, or one that cannot be read.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let mut labels: BTreeMap<&str, usize> = BTreeMap::new();
        let mut lines: Vec<(&str, u64)> = vec![];
        for line in text.lines() {
            let line = line.trim();
            if let Some(label) = line.strip_suffix(':') {
                labels.insert(label, lines.len());
            } else if let Some((code, word)) = encoded(line) {
                match (code.trim().is_empty(), lines.last_mut()) {
                    (true, Some(last)) => last.1 = word,
                    (true, None) => {}
                    (false, _) => lines.push((code, 0)),
                }
            }
        }
        let read = |(code, word): &(&str, u64)| {
            instruction(code, *word, &labels).ok_or_else(|| ModelError::Listing { line: code.trim().into() })
        };
        let instructions = lines.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        match instructions.is_empty() {
            true => Err(ModelError::Listing { line: text.lines().next().unwrap_or_default().into() }),
            false => Ok(Sass { instructions }),
        }
    }
}

impl Sass {
    /// Whether it differs from other code in numbers alone, as functions for slices of one matrix do.
    pub fn is_like(&self, other: &Sass) -> bool {
        let is_number = |place: &Place| matches!(place, Place::Immediate(_));
        let is_same = |(a, b): (&Operand, &Operand)| a == b || is_number(&a.place) && is_number(&b.place);
        let pairs = self.instructions.iter().zip(&other.instructions);
        self.instructions.len() == other.instructions.len()
            && pairs.into_iter().all(|(a, b)| {
                (&a.opcode, a.control, &a.guard) == (&b.opcode, b.control, &b.guard)
                    && a.operands.len() == b.operands.len()
                    && a.operands.iter().zip(&b.operands).all(is_same)
            })
    }
}

/// The text before the last comment of a line, and the hexadecimal number in it.
fn encoded(line: &str) -> Option<(&str, u64)> {
    let (code, comment) = line.strip_suffix("*/")?.rsplit_once("/*")?;
    let word = u64::from_str_radix(comment.trim().strip_prefix("0x")?, 16).ok()?;
    Some((code, word))
}

fn instruction(code: &str, word: u64, labels: &BTreeMap<&str, usize>) -> Option<Instruction> {
    let (_, text) = code.split_once("*/")?;
    let text =
        text.trim().trim_start_matches('{').trim_end_matches(['}', ' ']).trim().strip_suffix(';')?.trim();
    let (guard, text) = match text.strip_prefix('@') {
        Some(rest) => {
            let (guard, rest) = rest.split_once(' ')?;
            (Some(operand(guard, labels)?), rest.trim())
        }
        None => (None, text),
    };
    let (opcode, rest) = text.split_once(' ').unwrap_or((text, ""));
    let operands = split(rest).into_iter().map(|text| operand(text, labels)).collect::<Option<_>>()?;
    Some(Instruction {
        guard,
        opcode: opcode.split('.').map(String::from).collect(),
        operands,
        control: Control::of(word),
    })
}

impl Control {
    fn of(word: u64) -> Self {
        let bits = |from: u32, count: u32| (word >> from) as u32 & ((1 << count) - 1);
        let barrier = |from: u32| Some(bits(from, 3) as u8).filter(|&barrier| barrier < 6);
        Control { stall: bits(41, 4), result: barrier(46), read: barrier(49), waits: bits(52, 6) as u8 }
    }
}

/// Operands between commas.
fn split(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn operand(text: &str, labels: &BTreeMap<&str, usize>) -> Option<Operand> {
    let mut rest = text.trim();
    let mut operand =
        Operand { place: Place::Predicate(TRUE), negated: false, inverted: false, absolute: false };
    while let Some(sign) = rest.chars().next() {
        let is_number = || rest[1..].starts_with(|c: char| c.is_ascii_digit() || "IQS".contains(c));
        match sign {
            '!' | '~' => operand.inverted = true,
            '-' if !is_number() => operand.negated = true,
            '|' => operand.absolute = true,
            _ => break,
        }
        rest = &rest[1..];
    }
    operand.place = place(rest.trim_end_matches('|'), labels)?;
    Some(operand)
}

fn place(text: &str, labels: &BTreeMap<&str, usize>) -> Option<Place> {
    if let Some(label) = text.strip_prefix("`(") {
        return Some(Place::Target(*labels.get(label.strip_suffix(')')?)?));
    }
    if text.contains('[') {
        return bracketed(text);
    }
    let name = text.split(['.', '|']).next().unwrap_or(text);
    let numbered = |prefix: &str, zero: &str, none: u8| match name == zero {
        true => Some(none),
        false => name.strip_prefix(prefix)?.parse::<u8>().ok(),
    };
    if let Some(register) = numbered("R", "RZ", ZERO) {
        return Some(Place::Register(register));
    }
    if let Some(register) = numbered("UR", "URZ", UNIFORM_ZERO) {
        return Some(Place::Uniform(register));
    }
    if let Some(predicate) = numbered("P", "PT", TRUE) {
        return Some(Place::Predicate(predicate));
    }
    if let Some(predicate) = numbered("UP", "UPT", TRUE) {
        return Some(Place::UniformPredicate(predicate));
    }
    Some(immediate(text).map_or_else(|| Place::Named(text.into()), Place::Immediate))
}

/// Constants, `c[0x0][0x160]`, and memory, `[R2.64+0x10]` or `desc[UR4][R2.64+UR6+-0x10]`.
fn bracketed(text: &str) -> Option<Place> {
    let (before, inside) = text.rsplit_once('[')?;
    let inside = inside.split(']').next()?;
    if before.starts_with('c') {
        let is_first = before == "c[0x0]";
        return Some(Place::Constant(immediate(inside).filter(|_| is_first)));
    }
    let mut address = Address { scale: 1, ..Address::default() };
    for term in inside.split('+') {
        if let Some(offset) = signed(term) {
            address.offset += offset;
            continue;
        }
        let mut parts = term.split('.');
        let name = parts.next()?;
        let modifiers: Vec<_> = parts.collect();
        match place(name, &BTreeMap::new())? {
            Place::Register(ZERO) | Place::Uniform(UNIFORM_ZERO) => {}
            Place::Register(register) => {
                address.register = Some((register, modifiers.contains(&"64")));
                let scale = modifiers.iter().find_map(|modifier| modifier.strip_prefix('X')?.parse().ok());
                address.scale = scale.unwrap_or(1);
            }
            Place::Uniform(register) => address.uniform = Some(register),
            _ => return None,
        }
    }
    Some(Place::Memory(address))
}

/// A whole number with its sign.
fn signed(text: &str) -> Option<i64> {
    let (digits, sign) = text.strip_prefix('-').map_or((text, 1), |digits| (digits, -1));
    let number = match digits.strip_prefix("0x") {
        Some(hexadecimal) => i64::from_str_radix(hexadecimal, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(sign * number)
}

/// The bits of a number: a whole one, or a float.
fn immediate(text: &str) -> Option<u32> {
    if let Some(number) = signed(text).filter(|_| text.trim_start_matches('-').starts_with("0x")) {
        return Some(number as u32);
    }
    match text {
        "+INF" => Some(f32::INFINITY.to_bits()),
        "-INF" => Some(f32::NEG_INFINITY.to_bits()),
        "+QNAN" | "-QNAN" | "+SNAN" | "-SNAN" => Some(f32::NAN.to_bits()),
        _ => text.parse::<f32>().ok().map(f32::to_bits),
    }
}

impl Instruction {
    /// Its name, without modifiers.
    pub fn name(&self) -> &str {
        &self.opcode[0]
    }

    /// Whether it has a modifier.
    pub fn has(&self, modifier: &str) -> bool {
        self.opcode[1..].iter().any(|other| other == modifier)
    }

    /// The address that it reads or writes, if any.
    pub fn address(&self) -> Option<&Address> {
        self.operands.iter().find_map(|operand| match &operand.place {
            Place::Memory(address) => Some(address),
            _ => None,
        })
    }

    /// Bytes of memory of a lane.
    pub fn width(&self) -> u32 {
        let of = |modifier: &String| match modifier.as_str() {
            "128" => Some(16),
            "64" => Some(8),
            "U8" | "S8" => Some(1),
            "U16" | "S16" => Some(2),
            _ => None,
        };
        self.opcode[1..].iter().find_map(of).unwrap_or(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Instruction {
        let listing =
            format!(".L_x_0:\n/*0000*/ {text} ; /* 0x0000000000007918 */\n/* 0x003fd80000000f00 */\n");
        Sass::parse(&listing).expect(text).instructions.remove(0)
    }

    fn plain(place: Place) -> Operand {
        Operand { place, negated: false, inverted: false, absolute: false }
    }

    #[test]
    fn operands_are_told_apart() {
        let found = one("@!P0 IADD3.X R4, P1, -R5.reuse, 0x7f, ~R6, UP2, !PT");
        assert_eq!(found.guard, Some(Operand { inverted: true, ..plain(Place::Predicate(0)) }));
        assert_eq!(found.opcode, ["IADD3", "X"]);
        let expected = [
            plain(Place::Register(4)),
            plain(Place::Predicate(1)),
            Operand { negated: true, ..plain(Place::Register(5)) },
            plain(Place::Immediate(0x7f)),
            Operand { inverted: true, ..plain(Place::Register(6)) },
            plain(Place::UniformPredicate(2)),
            Operand { inverted: true, ..plain(Place::Predicate(TRUE)) },
        ];
        assert_eq!(found.operands, expected);
        let places =
            |text: &str| one(text).operands.into_iter().map(|operand| operand.place).collect::<Vec<_>>();
        assert_eq!(places("MOV R1, c[0x0][0x28]"), [Place::Register(1), Place::Constant(Some(0x28))]);
        assert_eq!(places("FMUL R1, |R2|, c[0x3][0x8]")[2], Place::Constant(None));
        assert_eq!(
            places("FMUL R1, RZ, -0.125")[1..],
            [Place::Register(ZERO), Place::Immediate((-0.125f32).to_bits())]
        );
        assert_eq!(places("IMAD R0, R7, -0x300, R0")[2], Place::Immediate(0u32.wrapping_sub(0x300)));
        assert_eq!(places("FADD R1, R2, -INF")[2], Place::Immediate(f32::NEG_INFINITY.to_bits()));
        assert_eq!(places("S2R R0, SR_TID.X")[1], Place::Named("SR_TID.X".into()));
        assert_eq!(places("BRA `(.L_x_0)"), [Place::Target(0)]);
    }

    #[test]
    fn addresses_are_sums() {
        let address = |text: &str| one(text).address().cloned().expect("an address");
        let expected = Address { register: Some((2, true)), scale: 1, uniform: None, offset: 16 };
        assert_eq!(address("LDG.E.128.CONSTANT R4, desc[UR4][R2.64+0x10]"), expected);
        let expected = Address { register: Some((3, false)), scale: 4, uniform: Some(6), offset: -8 };
        assert_eq!(address("STS [R3.X4+UR6+-0x8], R0"), expected);
        assert_eq!(one("LDG.E.128 R4, [R2.64]").width(), 16);
        assert_eq!(one("LDS.U16 R4, [R2]").width(), 2);
        assert_eq!(one("LDS R4, [RZ]").address().expect("an address").register, None);
    }

    /// 0x003fd8… is: wait for barriers 0 and 1, none of its own, 12 cycles.
    #[test]
    fn control_codes_are_read() {
        assert_eq!(one("NOP").control, Control { stall: 12, result: None, read: None, waits: 3 });
        let load = Control::of(0x000e_a800_0c1e_1900);
        assert_eq!(load, Control { stall: 4, result: Some(2), read: None, waits: 0 });
    }

    #[test]
    fn what_is_no_listing_is_an_error() {
        assert!(matches!(Sass::parse("hello"), Err(ModelError::Listing { .. })));
        let unknown = "/*0000*/ BRA `(.L_x_9) ; /* 0x0 */\n/* 0x0 */";
        let error = Sass::parse(unknown).expect_err("there is no such label").to_string();
        assert!(error.contains("BRA `(.L_x_9)"), "{error}");
    }
}
