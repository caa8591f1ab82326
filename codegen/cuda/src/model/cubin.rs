//! What a cubin, an ELF file, says of its function beside its code: registers, shared memory, local memory.

use super::{ModelError, Resources};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

/// Attributes of the section `.nv.info`: four bytes of format, number and length, then a symbol and a number.
const SYMBOL_AND_NUMBER: u8 = 4;
const FRAME_SIZE: u8 = 0x11;
const STACK_SIZE: u8 = 0x12;
const REGISTER_COUNT: u8 = 0x2f;

/// What the functions of a cubin take, the most of each.
///
/// # Errors
/// It is no cubin, or does not say how many registers it takes.
pub(super) fn resources(cubin: &[u8]) -> Result<Resources, ModelError> {
    let refused = |what: String| ModelError::Cubin { what };
    let file = ElfFile64::<object::Endianness>::parse(cubin).map_err(|error| refused(error.to_string()))?;
    let mut found = Resources::default();
    for section in file.sections() {
        let name = section.name().unwrap_or_default();
        if name.starts_with(".nv.shared.") && !name.contains("reserved") {
            found.static_shared = found.static_shared.max(section.size() as usize);
        }
        if name == ".nv.info" {
            let data = section.data().map_err(|error| refused(error.to_string()))?;
            for (attribute, number) in attributes(data) {
                match attribute {
                    REGISTER_COUNT => found.registers = found.registers.max(number),
                    FRAME_SIZE | STACK_SIZE => found.local = found.local.max(number),
                    _ => {}
                }
            }
        }
    }
    if found.registers == 0 {
        return Err(refused("it does not say how many registers its function takes".into()));
    }
    Ok(found)
}

/// The attributes that are a symbol and a number, by their own number.
fn attributes(mut data: &[u8]) -> Vec<(u8, usize)> {
    let mut found = vec![];
    while let [format, attribute, low, high, rest @ ..] = data {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let value = if *format == SYMBOL_AND_NUMBER { length } else { 0 };
        let Some((body, next)) = rest.split_at_checked(value) else { break };
        if let Some(number) = body.get(4..8) {
            found.push((*attribute, u32::from_le_bytes(number.try_into().expect("four bytes")) as usize));
        }
        data = next;
    }
    found
}
