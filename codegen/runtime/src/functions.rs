//! Where compiled functions are: steps name them by number, since addresses are only known when code is loaded.

/// The addresses of compiled functions, by number.
#[derive(Debug, Clone, Default)]
pub struct Functions(Vec<*const u8>);

// SAFETY: addresses of code, which is immutable.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

impl Functions {
    /// These addresses.
    pub fn new(addresses: Vec<*const u8>) -> Self {
        Functions(addresses)
    }

    /// The address of a function.
    pub fn address(&self, function: usize) -> *const u8 {
        self.0[function]
    }
}
