//! One case: a changed folder, read.

use crate::allocator::{Memory, counted};
use crate::mutate::{Folder, mutate};
use crate::readers::Reader;
use fastrand::Rng;
use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::path::Path;
use std::sync::Once;

/// Bytes that a reader may hold for each byte of its input, and besides.
const HELD: (usize, usize) = (64, 64 << 20);

/// Bytes that a reader may ask for in all, for each byte of its input, and besides: a bound on its work.
const TAKEN: (usize, usize) = (1 << 14, 1 << 30);

/// What a case came to.
#[derive(Debug)]
pub enum Outcome {
    /// The input was good.
    Read,
    /// It was refused, with this message.
    Refused(String),
    /// The reader did what it must not.
    Wrong(Finding),
}

/// What a reader did, on what.
#[derive(Debug)]
pub struct Finding {
    /// What it did.
    pub fault: String,
    /// The files.
    pub input: Folder,
}

/// Runs the case of this number. `folder` is an empty folder to put files into.
pub fn run(reader: &Reader, seeds: &[Folder], seed: u64, number: u64, folder: &Path) -> Outcome {
    let input = input(reader, seeds, seed, number);
    let size: usize = input.values().map(Vec::len).sum();
    let (result, memory) = counted(|| guarded(|| (reader.read)(&input, folder)));
    let fault = match result {
        Ok(Ok(())) => excess(size, memory),
        Ok(Err(message)) if message.is_empty() => Some("an error without a message".into()),
        Ok(Err(message)) => match excess(size, memory) {
            None => return Outcome::Refused(message),
            excess => excess,
        },
        Err(panic) => Some(format!("panic: {panic}")),
    };
    match fault {
        None => Outcome::Read,
        Some(fault) => Outcome::Wrong(Finding { fault, input }),
    }
}

/// The input of the case of this number.
pub(crate) fn input(reader: &Reader, seeds: &[Folder], seed: u64, number: u64) -> Folder {
    let mut hasher = DefaultHasher::new();
    (reader.name, seed, number).hash(&mut hasher);
    let mut rng = Rng::with_seed(hasher.finish());
    let mut input = seeds[rng.usize(..seeds.len())].clone();
    let other = &seeds[rng.usize(..seeds.len())];
    mutate(&mut rng, &mut input, other);
    input
}

/// How much more memory than allowed an input of this size took.
fn excess(size: usize, memory: Memory) -> Option<String> {
    let over = |what: &str, bytes: usize, (each, besides): (usize, usize)| {
        let is_over = bytes > each * size + besides;
        is_over.then(|| format!("{what} {} MiB of memory for an input of {size} bytes", bytes >> 20))
    };
    over("held", memory.most, HELD).or_else(|| over("took", memory.taken, TAKEN))
}

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The result, or the message of a panic with its place.
fn guarded<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        set_hook(Box::new(|info| PANIC.with(|message| *message.borrow_mut() = info.to_string())));
    });
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| PANIC.with(|message| message.take()))
}
