//! Which part of a multiprocessor an instruction keeps busy, and for how long.

use super::card::Card;
use super::sass::{Instruction, Place};

/// A part of a multiprocessor that instructions share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pipe {
    /// Additions and multiplications of `f32`, and those of whole numbers.
    F32,
    /// Multiplications of whole numbers, which only half of the units above do.
    Multiply,
    /// Additions, logic, comparisons, selections.
    Integer,
    /// Special functions and conversions.
    Special,
    /// Arithmetic of `f64`.
    F64,
    /// Products of matrices.
    Tensor,
}

/// How many pipes there are.
pub(super) const PIPES: usize = 6;

/// What a result waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Shared,
    Global,
    Tensor,
    /// A product of a warpgroup, which goes on by itself.
    Warpgroup,
    Special,
}

/// Whether an instruction reads or writes memory, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    LoadGlobal,
    StoreGlobal,
    LoadShared,
    StoreShared,
    /// From global to shared memory, without registers.
    Copy,
    /// Eight rows of sixteen bytes for each matrix.
    Matrices(u32),
    Local,
    /// Between the lanes, through the same unit.
    Exchange,
}

/// The access that an instruction is.
pub(super) fn access(instruction: &Instruction) -> Option<Access> {
    Some(match instruction.name() {
        "LDG" | "LD" | "ATOM" | "ATOMG" => Access::LoadGlobal,
        "STG" | "ST" | "RED" => Access::StoreGlobal,
        "LDS" | "ATOMS" => Access::LoadShared,
        "STS" => Access::StoreShared,
        "LDGSTS" => Access::Copy,
        "LDSM" | "STSM" => {
            let count = ["4", "2"].into_iter().find(|count| instruction.has(count)).unwrap_or("1");
            Access::Matrices(count.parse().unwrap_or(1))
        }
        "LDL" | "STL" => Access::Local,
        "SHFL" => Access::Exchange,
        _ => return None,
    })
}

/// The pipe that an instruction keeps busy, and for how many cycles.
pub(super) fn busy(instruction: &Instruction, card: &Card) -> Option<(Pipe, f64)> {
    let busy = &card.busy;
    Some(match instruction.name() {
        "FFMA" | "FADD" | "FMUL" | "HFMA2" | "HADD2" | "HMUL2" => (Pipe::F32, busy.f32),
        "IMAD" | "IMUL" | "IDP" | "IDP4A" => (Pipe::Multiply, busy.integer),
        "MUFU" | "I2F" | "F2I" | "F2F" | "I2I" | "FRND" | "POPC" | "FLO" | "BREV" => {
            (Pipe::Special, busy.special)
        }
        "DADD" | "DMUL" | "DFMA" | "DSETP" | "DMNMX" => (Pipe::F64, busy.f64),
        "HMMA" => (Pipe::Tensor, busy.tensor * share(instruction)),
        "HGMMA" => (Pipe::Tensor, busy.warpgroup * share(instruction)),
        "IADD3" | "IADD" | "VIADD" | "LOP3" | "SHF" | "LEA" | "ISETP" | "SEL" | "IMNMX" | "VIMNMX"
        | "VIADDMNMX" | "IABS" | "PRMT" | "MOV" | "FSEL" | "FSETP" | "FMNMX" | "F2FP" | "I2FP" | "SGXT"
        | "BMSK" | "PLOP3" | "P2R" | "R2P" | "FCHK" | "CS2R" | "HSETP2" | "HMNMX2" => {
            (Pipe::Integer, busy.integer)
        }
        _ => return None,
    })
}

/// How much of the time of a 16×8×16 product, or of a 16×8×8 one in TF32, an instruction takes: half of the depth takes half.
fn share(instruction: &Instruction) -> f64 {
    let operations = tensor_operations(instruction) as f64;
    operations / if instruction.has("TF32") { 2048.0 } else { 4096.0 }
}

/// Rows, columns and terms of a product of a warpgroup, such as `HGMMA.64x128x16`.
fn of_warpgroup(instruction: &Instruction) -> Option<[u64; 3]> {
    let shape = instruction.opcode.get(1).filter(|_| instruction.name() == "HGMMA")?;
    let numbers: Vec<u64> = shape.split('x').filter_map(|number| number.parse().ok()).collect();
    numbers.try_into().ok()
}

/// Whether a product of a warpgroup has its first operand in registers.
pub(super) fn is_of_registers(instruction: &Instruction) -> bool {
    let first = instruction.operands.get(1).map(|operand| &operand.place);
    instruction.name() == "HGMMA" && matches!(first, Some(Place::Register(_)))
}

/// Bytes of 16-bit operands in shared memory that a warp's quarter of a product of a warpgroup reads. The first operand may be in registers.
pub(super) fn operand_bytes(instruction: &Instruction) -> u64 {
    of_warpgroup(instruction).map_or(0, |[rows, columns, terms]| {
        let rows = if is_of_registers(instruction) { 0 } else { rows };
        (rows + columns) * terms * 2 / 4
    })
}

/// Multiplications and additions, two operations each, of a product on tensor cores; of a warpgroup's, those of a warp.
pub(super) fn tensor_operations(instruction: &Instruction) -> u64 {
    if let Some([rows, columns, terms]) = of_warpgroup(instruction) {
        return 2 * rows * columns * terms / 4;
    }
    match (instruction.name(), instruction.opcode.get(1).map(String::as_str)) {
        ("HMMA", Some("16816")) => 2 * 16 * 8 * 16,
        ("HMMA", Some("1688")) => 2 * 16 * 8 * 8,
        ("HMMA", Some("1684")) => 2 * 16 * 8 * 4,
        _ => 0,
    }
}

/// What the result of an instruction of variable length waits for.
pub(super) fn wait(instruction: &Instruction) -> Wait {
    match instruction.name() {
        "LDG" | "LD" | "ATOM" | "ATOMG" | "LDGSTS" | "LDL" => Wait::Global,
        "LDS" | "LDSM" | "SHFL" | "ATOMS" | "LDC" => Wait::Shared,
        "HMMA" => Wait::Tensor,
        "HGMMA" => Wait::Warpgroup,
        _ => Wait::Special,
    }
}

/// Registers that an instruction writes, one after another.
pub(super) fn result_registers(instruction: &Instruction) -> usize {
    let is_double = |modifier: &str| instruction.opcode.get(1).is_some_and(|first| first == modifier);
    match instruction.name() {
        "LDG" | "LDS" | "LDL" | "LD" | "LDC" | "ULDC" => instruction.width().div_ceil(4) as usize,
        "LDSM" => ["4", "2"]
            .iter()
            .find_map(|count| instruction.has(count).then(|| count.parse().ok())?)
            .unwrap_or(1),
        "HMMA" => {
            if instruction.has("F32") {
                4
            } else {
                2
            }
        }
        "HGMMA" => of_warpgroup(instruction).map_or(1, |[_, columns, _]| columns as usize / 2),
        "DADD" | "DMUL" | "DFMA" | "DMNMX" => 2,
        "F2F" | "I2F" if is_double("F64") => 2,
        "IMAD" | "UIMAD" if instruction.has("WIDE") => 2,
        "CS2R" if !instruction.has("32") => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sass::Sass;
    use super::*;

    /// A warp has a quarter of 64×128×16 multiplications and additions, and of operands of 64×16 and 128×16 numbers of two bytes; at the peak,
    /// 4,096 operations of a multiprocessor in a cycle, its quarter is busy for 64 cycles.
    #[test]
    fn a_product_of_a_warpgroup_is_shared_by_four_warps() {
        let listing = "/*0000*/ HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8].tnspB, R24, gsb0 ; /* 0x0000000000007918 */\n\
                       /* 0x003fd80000000f00 */\n";
        let product = Sass::parse(listing).expect("a product").instructions.remove(0);
        assert_eq!(tensor_operations(&product), 2 * 64 * 128 * 16 / 4);
        assert_eq!(operand_bytes(&product), (64 + 128) * 16 * 2 / 4);
        assert_eq!((wait(&product), result_registers(&product)), (Wait::Warpgroup, 64));
        let of_registers = listing.replace("R24, gdesc", "R24, R8, gdesc");
        let of_registers = Sass::parse(&of_registers).expect("a product").instructions.remove(0);
        assert_eq!(operand_bytes(&of_registers), 128 * 16 * 2 / 4);
        let card = Card::named("h200").expect("a card");
        let (pipe, cycles) = busy(&product, card).expect("a pipe");
        assert_eq!(pipe, Pipe::Tensor);
        assert!((cycles - 64.0 / 0.817).abs() < 1e-9, "{cycles}");
    }
}
