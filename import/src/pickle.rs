//! What `torch.save` makes of tensors by name: a program for Python's pickle machine, of protocol 2, of which the few instructions are known
//! that a dictionary of tensors takes. Nothing is called: what would build a tensor says where one lies.
//!
//! ```text
//! {"a.weight": _rebuild_tensor_v2(("storage", FloatStorage, "0", "cpu", 216), 0, (8, 27), (27, 1), False, OrderedDict())}
//!     → a.weight: data/0, f32, sizes [8, 27], strides [27, 1]
//! ```
//!
//! The instructions are those of `Lib/pickletools.py`, the functions those of `torch/_utils.py`.

use crate::schema::{Payload, Size, TensorMeta};
use std::collections::HashMap;
use std::rc::Rc;

/// Where the tensors of a dictionary lie; what is no tensor is left out.
///
/// # Errors
/// The program ends early, or has an instruction that no dictionary of tensors takes.
pub(crate) fn tensors(program: &[u8]) -> Result<Vec<(String, Payload)>, String> {
    let Value::Dictionary(entries) = Machine { program, stack: vec![], memo: HashMap::new() }.run()? else {
        return Err("it is no dictionary".into());
    };
    let named = entries.iter().filter_map(|(key, value)| match (key, value) {
        (Value::Text(name), Value::Tensor(tensor)) => Some((name.to_string(), payload(tensor))),
        _ => None,
    });
    Ok(named.collect())
}

fn payload(tensor: &Tensor) -> Payload {
    let numbers = |all: &[i64]| all.iter().map(|&number| Size::Int(number)).collect();
    let meta = TensorMeta {
        dtype: tensor.dtype,
        sizes: numbers(&tensor.sizes),
        strides: numbers(&tensor.strides),
        storage_offset: Size::Int(tensor.offset),
        requires_grad: tensor.requires_grad,
    };
    Payload { path_name: format!("data/{}", tensor.storage), use_pickle: false, tensor_meta: Some(meta) }
}

/// What is on the stack.
#[derive(Clone)]
enum Value {
    Mark,
    /// None, and what is never looked into.
    Nothing,
    Truth(bool),
    Number(i64),
    Text(Rc<str>),
    /// A class or a function: module and name.
    Global(Rc<str>),
    /// Its elements, and how deep it goes.
    Tuple(Rc<Vec<Value>>, usize),
    Dictionary(Rc<Vec<(Value, Value)>>),
    /// A scalar type of the schema, and the name of a file.
    Storage(u64, Rc<str>),
    Tensor(Rc<Tensor>),
}

#[derive(Clone)]
struct Tensor {
    dtype: u64,
    storage: Rc<str>,
    offset: i64,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    requires_grad: bool,
}

/// Tuples in each other beyond this are none of a tensor.
const DEEPEST: usize = 16;

struct Machine<'p> {
    /// What is left of it.
    program: &'p [u8],
    stack: Vec<Value>,
    memo: HashMap<u32, Value>,
}

impl Machine<'_> {
    /// What the program leaves.
    fn run(mut self) -> Result<Value, String> {
        loop {
            let instruction = self.byte()?;
            match instruction {
                // PROTO, STOP
                0x80 => drop(self.byte()?),
                b'.' => return self.pop(),
                // MARK, NONE, NEWTRUE, NEWFALSE
                b'(' => self.stack.push(Value::Mark),
                b'N' => self.stack.push(Value::Nothing),
                0x88 => self.stack.push(Value::Truth(true)),
                0x89 => self.stack.push(Value::Truth(false)),
                // BININT1, BININT2, BININT, LONG1
                b'K' | b'M' | b'J' | 0x8a => {
                    let number = self.number(instruction)?;
                    self.stack.push(Value::Number(number));
                }
                // BINUNICODE, GLOBAL
                b'X' => {
                    let length = u32::from_le_bytes(self.array()?);
                    let text = self.text(length as usize)?;
                    self.stack.push(Value::Text(text));
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.stack.push(Value::Global(format!("{module}.{name}").into()));
                }
                // BINPUT, LONG_BINPUT, BINGET, LONG_BINGET
                b'q' | b'r' => {
                    let place = self.place(instruction == b'r')?;
                    let top = self.stack.last().cloned().ok_or(EARLY)?;
                    self.memo.insert(place, top);
                }
                b'h' | b'j' => {
                    let place = self.place(instruction == b'j')?;
                    let value = self.memo.get(&place).cloned().ok_or("it reads a place that is empty")?;
                    self.stack.push(value);
                }
                // EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3, TUPLE
                b')' => self.tuple(0)?,
                0x85..=0x87 => self.tuple(usize::from(instruction - 0x84))?,
                b't' => {
                    let count = self.stack.len() - self.mark()? - 1;
                    self.tuple(count)?;
                    let tuple = self.pop()?;
                    self.pop()?;
                    self.stack.push(tuple);
                }
                // EMPTY_DICT, SETITEM, SETITEMS
                b'}' => self.stack.push(Value::Dictionary(Rc::default())),
                b's' => {
                    let first = self.stack.len().checked_sub(2).ok_or(EARLY)?;
                    self.set_items(first, first)?;
                }
                b'u' => {
                    let mark = self.mark()?;
                    self.set_items(mark + 1, mark)?;
                }
                // BINPERSID, REDUCE, BUILD
                b'Q' => {
                    let place = self.pop()?;
                    self.stack.push(storage(&place)?);
                }
                b'R' => {
                    let (arguments, function) = (self.pop()?, self.pop()?);
                    self.stack.push(called(&function, &arguments)?);
                }
                // What a dictionary has beside its entries is not looked at.
                b'b' => drop(self.pop()?),
                other => return Err(format!("it has the instruction {other:#04x}, which no tensors take")),
            }
        }
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.array::<1>()?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (first, rest) = self.program.split_first_chunk().ok_or(EARLY)?;
        self.program = rest;
        Ok(*first)
    }

    fn text(&mut self, length: usize) -> Result<Rc<str>, String> {
        let (text, rest) = self.program.split_at_checked(length).ok_or(EARLY)?;
        self.program = rest;
        let text = std::str::from_utf8(text).ok().filter(|text| !text.contains(char::is_control));
        Ok(text.ok_or("it has a name that is no text")?.into())
    }

    fn line(&mut self) -> Result<Rc<str>, String> {
        let end = self.program.iter().position(|&byte| byte == b'\n').ok_or(EARLY)?;
        let line = self.text(end)?;
        self.byte()?;
        Ok(line)
    }

    fn number(&mut self, instruction: u8) -> Result<i64, String> {
        Ok(match instruction {
            b'K' => self.byte()?.into(),
            b'M' => u16::from_le_bytes(self.array()?).into(),
            b'J' => i32::from_le_bytes(self.array()?).into(),
            _ => {
                let length = usize::from(self.byte()?);
                let (bytes, rest) = self.program.split_at_checked(length).ok_or(EARLY)?;
                self.program = rest;
                let is_negative = bytes.last().is_some_and(|&last| last >= 0x80);
                let mut wide = [if is_negative { 0xff } else { 0 }; 8];
                wide.get_mut(..length).ok_or("it has a number beyond 64 bits")?.copy_from_slice(bytes);
                i64::from_le_bytes(wide)
            }
        })
    }

    fn place(&mut self, is_long: bool) -> Result<u32, String> {
        if is_long { Ok(u32::from_le_bytes(self.array()?)) } else { Ok(self.byte()?.into()) }
    }

    fn pop(&mut self) -> Result<Value, String> {
        self.stack.pop().ok_or_else(|| EARLY.into())
    }

    /// Where the last mark is.
    fn mark(&self) -> Result<usize, String> {
        self.stack.iter().rposition(|value| matches!(value, Value::Mark)).ok_or_else(|| EARLY.into())
    }

    /// A tuple of what is above on the stack.
    fn tuple(&mut self, count: usize) -> Result<(), String> {
        let first = self.stack.len().checked_sub(count).ok_or(EARLY)?;
        let elements = self.stack.split_off(first);
        let depth = elements.iter().map(Value::depth).max().unwrap_or(0) + 1;
        if depth > DEEPEST {
            return Err(format!("it has more than {DEEPEST} tuples in each other"));
        }
        self.stack.push(Value::Tuple(elements.into(), depth));
        Ok(())
    }

    /// Puts keys and values, which begin at `first`, into the dictionary below, and takes away what is there from `bottom` on.
    fn set_items(&mut self, first: usize, bottom: usize) -> Result<(), String> {
        let items = self.stack.split_off(first);
        self.stack.truncate(bottom);
        let Some(Value::Dictionary(entries)) = self.stack.last_mut() else {
            return Err("it puts entries into something that is no dictionary".into());
        };
        let entries = Rc::make_mut(entries);
        for item in items.chunks_exact(2) {
            if matches!(item[1], Value::Dictionary(_)) {
                return Err("it has a dictionary in another one".into());
            }
            entries.push((item[0].clone(), item[1].clone()));
        }
        Ok(())
    }
}

const EARLY: &str = "it ends early";

impl Value {
    fn depth(&self) -> usize {
        if let Value::Tuple(_, depth) = self { *depth } else { 0 }
    }

    fn elements(&self) -> &[Value] {
        if let Value::Tuple(elements, _) = self { elements } else { &[] }
    }

    fn numbers(&self) -> Option<Vec<i64>> {
        let number = |value: &Value| if let Value::Number(number) = value { Some(*number) } else { None };
        let Value::Tuple(elements, _) = self else { return None };
        elements.iter().map(number).collect()
    }
}

/// A storage by its place: `("storage", class, file, device, elements)`.
fn storage(place: &Value) -> Result<Value, String> {
    let [_, Value::Global(class), Value::Text(file), ..] = place.elements() else {
        return Err("it names something that is no storage".into());
    };
    const CLASSES: [(&str, u64); 10] = [
        ("torch.ByteStorage", 1),
        ("torch.CharStorage", 2),
        ("torch.ShortStorage", 3),
        ("torch.IntStorage", 4),
        ("torch.LongStorage", 5),
        ("torch.HalfStorage", 6),
        ("torch.FloatStorage", 7),
        ("torch.DoubleStorage", 8),
        ("torch.BoolStorage", 12),
        ("torch.BFloat16Storage", 13),
    ];
    let dtype = CLASSES.iter().find(|(name, _)| **name == **class).map(|(_, dtype)| *dtype);
    Ok(Value::Storage(dtype.ok_or_else(|| format!("no tensor here lies in a {class}"))?, file.clone()))
}

/// What a function gives that builds a tensor, or an empty dictionary.
fn called(function: &Value, arguments: &Value) -> Result<Value, String> {
    let Value::Global(name) = function else { return Err("it calls something that is no function".into()) };
    match (&**name, arguments.elements()) {
        ("collections.OrderedDict", []) => Ok(Value::Dictionary(Rc::default())),
        (
            "torch._utils._rebuild_tensor_v2",
            [
                Value::Storage(dtype, storage),
                Value::Number(offset),
                sizes,
                strides,
                Value::Truth(requires_grad),
                ..,
            ],
        ) => {
            let numbers = |value: &Value| value.numbers().ok_or("it has a tensor without extents");
            let (sizes, strides) = (numbers(sizes)?, numbers(strides)?);
            let (dtype, storage, offset, requires_grad) = (*dtype, storage.clone(), *offset, *requires_grad);
            Ok(Value::Tensor(Tensor { dtype, storage, offset, sizes, strides, requires_grad }.into()))
        }
        ("torch._utils._rebuild_parameter", [Value::Tensor(tensor), Value::Truth(requires_grad), ..]) => {
            Ok(Value::Tensor(Tensor { requires_grad: *requires_grad, ..Tensor::clone(tensor) }.into()))
        }
        _ => Err(format!("it calls {name}, which no tensors take")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `{"w": _rebuild_parameter(_rebuild_tensor_v2(("storage", FloatStorage, "0", "cpu", 6), 0, (2, 3), (3, 1), False, OrderedDict()), True,
    /// OrderedDict()), "tied": the same}`
    const PARAMETERS: &[u8] = b"\x80\x02}q\x00(X\x01\x00\x00\x00wctorch._utils\n_rebuild_parameter\nctorch._utils\n_rebuild_tensor_v2\n\
        ((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQK\x00K\x02K\x03\x86K\x03K\x01\x86\
        \x89ccollections\nOrderedDict\nq\x01)RtR\x88h\x01)R\x87Rr\x02\x00\x00\x00X\x04\x00\x00\x00tiedj\x02\x00\x00\x00u.";

    #[test]
    fn tensors_are_found_and_ties_are_kept() {
        let found = tensors(PARAMETERS).unwrap();
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["w", "tied"]);
        for (_, payload) in &found {
            let meta = payload.tensor_meta.as_ref().unwrap();
            assert_eq!(payload.path_name, "data/0");
            assert_eq!((meta.dtype, meta.requires_grad), (7, true));
            assert_eq!(meta.sizes, [Size::Int(2), Size::Int(3)]);
            assert_eq!(meta.strides, [Size::Int(3), Size::Int(1)]);
        }
    }

    #[test]
    fn whatever_is_cut_or_changed_is_an_error_or_other_tensors() {
        for end in 0..PARAMETERS.len() {
            assert!(tensors(&PARAMETERS[..end]).is_err(), "{end}");
        }
        for at in 0..PARAMETERS.len() {
            for byte in 0..=255 {
                let mut program = PARAMETERS.to_vec();
                program[at] = byte;
                // Nothing panics, and messages are of one line.
                if let Err(reason) = tensors(&program) {
                    assert!(!reason.contains(char::is_control), "{reason}");
                }
            }
        }
        let nested = [&b"("[..], &[b'N'; 1], &[0x85; 1000]].concat();
        assert!(tensors(&nested).is_err_and(|reason| reason.contains("16 tuples")));
        let message = tensors(b"cos\nsystem\n(X\x02\x00\x00\x00lstR.").err();
        assert_eq!(message.as_deref(), Some("it calls os.system, which no tensors take"));
    }
}
