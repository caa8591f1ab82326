//! The code of a program on a device: functions that were loaded, and products as a library has prepared them.

use super::Renderer;
use super::cache::Cache;
use super::cublaslt::{Library, Prepared};
use super::device::{Code, Device};
use super::error::CudaError;
use super::launches::{Argument, Launch, Launches, LibraryProduct, StreamOp};
use super::matrices::{Algorithm, MatrixProduct};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What the steps of a program run.
pub(super) struct Loaded {
    /// Those that are launched, by their numbers in the renderer.
    functions: BTreeMap<usize, Code>,
    products: HashMap<(MatrixProduct, Algorithm), Prepared>,
}

impl Loaded {
    /// # Errors
    /// NVRTC is missing or refuses a function, the driver reports an error, or the library cannot do a product any more.
    pub(super) fn new(
        program: &Launches,
        renderer: &Renderer,
        device: &Device,
        cache: &Cache,
        library: Option<&Arc<Library>>,
    ) -> Result<Self, CudaError> {
        let architecture = device.architecture()?;
        let launched = program.functions();
        let sources: Vec<_> = launched.iter().map(|&at| &renderer.functions()[at]).collect();
        let functions = launched.into_iter().zip(device.load(&sources, &architecture, cache)?).collect();
        let mut products = HashMap::new();
        for step in &program.steps {
            let StreamOp::Product(step) = step else { continue };
            if let Entry::Vacant(place) = products.entry((step.product, step.algorithm)) {
                place.insert(library.ok_or(CudaError::NoLibrary)?.prepare(&step.product, step.algorithm)?);
            }
        }
        Ok(Loaded { functions, products })
    }

    /// Starts a launch behind what runs on the device.
    ///
    /// # Safety
    /// The arguments are addresses of what the function was rendered for.
    pub(super) unsafe fn launch(
        &self,
        device: &Device,
        launch: &Launch,
        address: &dyn Fn(Argument) -> u64,
    ) -> Result<(), CudaError> {
        let addresses: Vec<u64> = launch.arguments.iter().map(|argument| address(*argument)).collect();
        // SAFETY: the caller's promise.
        unsafe { device.launch(&self.functions[&launch.function], launch.grid, &addresses) }
    }

    /// Starts a library's product behind what runs on the device.
    ///
    /// # Safety
    /// The arguments are addresses of matrices as the product describes them, and of the algorithm's workspace.
    pub(super) unsafe fn multiply(
        &self,
        device: &Device,
        step: &LibraryProduct,
        address: &dyn Fn(Argument) -> u64,
    ) -> Result<(), CudaError> {
        let prepared = &self.products[&(step.product, step.algorithm)];
        // SAFETY: the caller's promise.
        unsafe { prepared.start(device, step.arguments.map(address), address(step.workspace)) }?;
        device.settle("a product by cublasLt")
    }
}
