//! Named buffers that outlive a run: parameters, optimizer state, caches.

use crate::{CodegenError, listed};
use kernfusion_ir::{DType, Tensor, TensorType};
use kernfusion_runtime::memory::{Allocation, BumpAllocator};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Named state buffers that the executables of one model share: a training step, an evaluation, a decoder. Clones
/// name the same buffers. A run holds them until it ends, so that runs of several threads take turns.
#[derive(Debug, Clone, Default)]
pub struct States {
    buffers: Arc<Mutex<BTreeMap<String, State>>>,
    /// Held while buffers are in use; forks share it.
    turn: Arc<Mutex<()>>,
    /// Where memory for states to come is taken from; forks, which may end earlier, take theirs elsewhere.
    allocator: Arc<Mutex<BumpAllocator>>,
    /// Where they are if not in the memory of the CPU.
    device: Option<Arc<dyn DeviceAllocator>>,
    /// Whether `set` changes only what is there.
    closed: bool,
}

/// A device that has states in its memory.
pub trait DeviceAllocator: Debug + Send + Sync {
    /// Zeros in its memory.
    ///
    /// # Errors
    /// It has not that much free, or does not answer.
    fn zeros(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, CodegenError>;
}

/// A piece of a device's memory.
pub trait DeviceMemory: Any + Debug + Send + Sync {
    /// Copies its first bytes.
    ///
    /// # Errors
    /// The device does not answer.
    fn read(&self, bytes: &mut [u8]) -> Result<(), CodegenError>;

    /// Replaces its first bytes.
    ///
    /// # Errors
    /// The device does not answer.
    fn write(&self, bytes: &[u8]) -> Result<(), CodegenError>;
}

/// The buffers, held.
pub struct Held<'a> {
    buffers: MutexGuard<'a, BTreeMap<String, State>>,
    _turn: MutexGuard<'a, ()>,
}

impl Deref for Held<'_> {
    type Target = BTreeMap<String, State>;
    fn deref(&self) -> &Self::Target {
        &self.buffers
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.buffers
    }
}

/// One buffer. The holder of a clone reads or writes it only while the states are held.
#[derive(Debug, Clone)]
pub struct State {
    ty: TensorType,
    memory: Memory,
    /// How often it was written.
    version: Arc<AtomicU64>,
}

#[derive(Debug, Clone)]
enum Memory {
    Host(Allocation),
    Device(Arc<dyn DeviceMemory>),
}

impl State {
    /// The first byte, if it is in the memory of the CPU.
    pub fn host(&self) -> Option<*mut u8> {
        match &self.memory {
            Memory::Host(allocation) => Some(allocation.as_ptr()),
            Memory::Device(_) => None,
        }
    }

    /// Its memory, if that is a device's of this kind.
    pub fn device<M: DeviceMemory>(&self) -> Option<&M> {
        match &self.memory {
            Memory::Device(memory) => (&**memory as &dyn Any).downcast_ref(),
            Memory::Host(_) => None,
        }
    }

    /// A number that changes whenever its elements may have changed.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Marks its elements as changed. The caller holds the states and is about to write them.
    pub fn touch(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets `look` see its bytes while the states are held; copies them first if they are on a device. `None` if the device does
    /// not answer.
    fn with_bytes<R>(&self, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match &self.memory {
            Memory::Host(allocation) => {
                // SAFETY: the memory has that many bytes, which start as zeros; the states are held.
                Some(look(unsafe { std::slice::from_raw_parts(allocation.as_ptr(), self.ty.bytes()) }))
            }
            Memory::Device(memory) => {
                let mut bytes = vec![0; self.ty.bytes()];
                memory.read(&mut bytes).ok()?;
                Some(look(&bytes))
            }
        }
    }

    /// Takes a value of its type while the states are held.
    fn write(&self, value: &Tensor) -> Result<(), CodegenError> {
        self.touch();
        match &self.memory {
            // SAFETY: both cover the type's bytes, and the states are held.
            Memory::Host(allocation) => unsafe {
                allocation.as_ptr().copy_from_nonoverlapping(value.data().as_ptr(), self.ty.bytes());
            },
            Memory::Device(memory) => memory.write(value.bytes())?,
        }
        Ok(())
    }
}

impl States {
    /// No states.
    pub fn new() -> Self {
        States::default()
    }

    /// No states, and those to come in the memory of a device.
    pub fn on(device: Arc<dyn DeviceAllocator>) -> Self {
        States { device: Some(device), ..States::default() }
    }

    /// The same buffers, and beside them others of its own: what is made in either later on is not the other's. So a decoder has
    /// caches that no other one writes over, on parameters that go on being trained.
    pub fn fork(&self) -> Self {
        let buffers = self.hold().clone();
        States { buffers: Arc::new(Mutex::new(buffers)), allocator: Arc::default(), ..self.clone() }
    }

    /// The same buffers. [`set`](Self::set) changes those that are there and makes no other, so that a misspelled name is an error; programs
    /// that are compiled over them still make states of their own.
    pub fn closed(&self) -> Self {
        States { closed: true, ..self.clone() }
    }

    /// Holds the buffers; a run that panicked left numbers behind, but no broken memory.
    pub fn hold(&self) -> Held<'_> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        Held { buffers: self.buffers.lock().unwrap_or_else(PoisonError::into_inner), _turn: turn }
    }

    /// The state of that name and type, made and filled with zeros if there is none.
    pub fn ensure(&self, name: &str, ty: &TensorType) -> Result<State, CodegenError> {
        let mut states = self.hold();
        if let Some(state) = states.get(name) {
            return same_type(name, ty, &state.ty).map(|()| state.clone());
        }
        let state = State { ty: ty.clone(), memory: self.allocate(ty.bytes())?, version: Arc::default() };
        states.insert(name.into(), state.clone());
        Ok(state)
    }

    /// Zeros where these states live.
    fn allocate(&self, bytes: usize) -> Result<Memory, CodegenError> {
        if let Some(device) = &self.device {
            return Ok(Memory::Device(device.zeros(bytes)?));
        }
        Ok(Memory::Host(self.allocator.lock().unwrap_or_else(PoisonError::into_inner).take(bytes)?))
    }

    /// Gives a state a value; makes the state if there is none, unless the states are [closed](Self::closed).
    ///
    /// # Errors
    /// The state has another type, there is no memory for a new one, or the states are closed and there is none of that name.
    pub fn set(&self, name: &str, value: &Tensor) -> Result<(), CodegenError> {
        match self.ty(name) {
            Some(ty) if ty != value.ty() => {
                return Err(CodegenError::Value { name: name.into(), expected: ty, found: value.ty() });
            }
            None if self.closed => return Err(self.unknown(name)),
            _ => {}
        }
        let state = self.ensure(name, &value.ty())?;
        let _held = self.hold();
        state.write(value)
    }

    /// The error that there is no state of that name, with the names that there are, those that are most alike first.
    pub fn unknown(&self, name: &str) -> CodegenError {
        /// How many names a message has.
        const MOST: usize = 8;
        let mut names = self.names();
        names.sort_by_key(|other| std::cmp::Reverse(common_ends(name, other)));
        CodegenError::NoState { name: name.into(), others: listed(&names, MOST) }
    }

    /// A copy of a state's value; `None` if there is none, or if the device that has it does not answer.
    pub fn get(&self, name: &str) -> Option<Tensor> {
        let states = self.hold();
        let state = states.get(name)?;
        state.with_bytes(|bytes| Tensor::from_bytes(&state.ty, bytes)).flatten()
    }

    /// The type of a state.
    pub fn ty(&self, name: &str) -> Option<TensorType> {
        self.hold().get(name).map(|state| state.ty.clone())
    }

    /// Looks at an `f32` state's elements where they are; `None` if there is none of that name and type. The states are
    /// held meanwhile: `look` must not use them otherwise.
    pub fn with_f32<R>(&self, name: &str, look: impl FnOnce(&[f32]) -> R) -> Option<R> {
        let states = self.hold();
        let state = states.get(name).filter(|state| state.ty.dtype == DType::F32)?;
        let Some(start) = state.host() else {
            let copy = state.with_bytes(|bytes| Tensor::from_bytes(&state.ty, bytes)).flatten()?;
            return copy.as_f32().map(look);
        };
        // SAFETY: the memory is aligned to a cache line and holds that many numbers; the states are held.
        let elements = unsafe { std::slice::from_raw_parts(start.cast(), state.ty.elements()) };
        Some(look(elements))
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.hold().keys().cloned().collect()
    }

    /// Bytes of all states.
    pub fn bytes(&self) -> usize {
        self.hold().values().map(|state| state.ty.bytes()).sum()
    }
}

/// The characters with which both begin, and those with which both end.
fn common_ends(a: &str, b: &str) -> usize {
    let begin = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    begin + a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b).count()
}

fn same_type(name: &str, expected: &TensorType, found: &TensorType) -> Result<(), CodegenError> {
    if expected == found {
        return Ok(());
    }
    Err(CodegenError::State { name: name.into(), expected: expected.clone(), found: found.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_name_the_same_buffers_and_types_are_kept() {
        let states = States::new();
        let value = Tensor::new([3], vec![1.5f32, -2.0, 0.25]);
        states.clone().set("w", &value).unwrap();
        assert_eq!(states.get("w"), Some(value));
        assert_eq!(states.with_f32("w", |w| w[1]), Some(-2.0));
        assert_eq!((states.names(), states.bytes()), (vec!["w".to_owned()], 12));
        let error = states.set("w", &Tensor::new([2], vec![1i32, 2])).unwrap_err();
        assert_eq!(error.to_string(), "state \"w\" is f32[3], its new value i32[2]");
        let error = states.ensure("w", &TensorType::new(DType::I32, [2])).unwrap_err();
        assert_eq!(error.to_string(), "state \"w\": is f32[3], the program expects i32[2]");
        assert_eq!(states.get("none"), None);
    }

    #[test]
    fn closed_states_take_values_but_no_new_names() {
        let states = States::new();
        let value = Tensor::new([1], vec![1.5f32]);
        ["a.bias", "a.weight", "b.weight"].iter().for_each(|name| states.set(name, &value).unwrap());
        let closed = states.closed();
        closed.set("a.bias", &Tensor::new([1], vec![2.5f32])).unwrap();
        assert_eq!(states.get("a.bias"), Some(Tensor::new([1], vec![2.5f32])));
        let error = closed.set("a.weigth", &value).unwrap_err().to_string();
        assert_eq!(error, "there is no state \"a.weigth\" (there are: a.weight, a.bias and b.weight)");
        assert_eq!(states.names().len(), 3);
        closed.ensure("cache", &value.ty()).unwrap();
        assert!(states.ty("cache").is_some());
    }

    #[test]
    fn a_fork_has_the_same_buffers_and_others_of_its_own() {
        let states = States::new();
        let value = |x: f32| Tensor::new([1], vec![x]);
        states.set("w", &value(1.0)).unwrap();
        let fork = states.fork();
        fork.set("cache", &value(2.0)).unwrap();
        states.set("later", &value(3.0)).unwrap();
        states.set("w", &value(4.0)).unwrap();
        assert_eq!(fork.get("w"), Some(value(4.0)));
        assert_eq!(
            (states.names(), fork.names()),
            (vec!["later".into(), "w".into()], vec!["cache".into(), "w".to_string()])
        );
    }
}
