//! cublasLt, NVIDIA's library of matrix products: loaded when a user allows it, and where it is there. It takes part in tuning
//! as one candidate among our own tiles.
//!
//! Its sums have another order than ours, so results have other bits. They are the same from run to run on one machine with
//! one version of the library: the algorithm that was chosen is kept on disk, and algorithms are asked for that sum in one go,
//! or in parts that are added up in `f32` by a separate step. Products of `f32` are those of `f32`, not TF32, unless asked for.

use super::device::Device;
use super::error::CudaError;
use super::matrices::{Algorithm, Matrix, MatrixProduct};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use kernfusion_ir::DType;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// Bytes that an algorithm may take beside the matrices; what NVIDIA recommends for Hopper.
const WORKSPACE: usize = 32 << 20;

/// Algorithms of a product that are tried, the most promising by the library's own estimate.
const TRIED: usize = 4;

/// The library, opened for a device.
pub(super) struct Library {
    handle: sys::cublasLtHandle_t,
    version: usize,
    device: Device,
}

// SAFETY: the library's calls may be made by any thread, with one handle by several at a time.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// What became of cublasLt in a program whose tuning was allowed to try it.
#[derive(Debug, Clone, PartialEq)]
pub struct LibraryUse {
    /// Its version, such as 120901 for 12.9.1; or why it was no candidate.
    pub version: Result<usize, CudaError>,
    /// Products of a run that it does.
    pub products: usize,
}

impl fmt::Display for LibraryUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            Ok(version) => {
                // Before 13 the major version stood at the thousands.
                let (major, rest) = if *version < 100_000 {
                    (version / 1000, version % 1000)
                } else {
                    (version / 10_000, version % 10_000)
                };
                write!(f, "{} products by cublasLt {major}.{}.{}", self.products, rest / 100, rest % 100)
            }
            Err(error) => write!(f, "own kernels for all products: {error}"),
        }
    }
}

impl Library {
    /// Opens it.
    ///
    /// # Errors
    /// It is not installed, or cannot work with the device.
    pub(super) fn open(device: &Device) -> Result<Arc<Self>, CudaError> {
        // SAFETY: looks for a library of NVIDIA's, whose start does nothing but prepare itself.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoLibrary);
        }
        device.enter()?;
        let handle = result::create_handle().map_err(failed("opening it"))?;
        // SAFETY: asks a library that is there for a number.
        let version = unsafe { sys::cublasLtGetVersion() };
        Ok(Arc::new(Library { handle, version, device: device.clone() }))
    }

    /// Such as 120901 for 12.9.1.
    pub(super) fn version(&self) -> usize {
        self.version
    }

    /// The most promising algorithms for a product; none if the library cannot do it.
    pub(super) fn algorithms(self: &Arc<Self>, product: &MatrixProduct) -> Vec<Algorithm> {
        let Ok(description) = Description::new(self, product) else { return vec![] };
        let Ok(preference) = Preference::new(product) else { return vec![] };
        let mut found = [nothing(); TRIED];
        let mut count = 0;
        let Description { operation, layouts: [a, b, d], .. } = &description;
        // SAFETY: all descriptions live, and there is room for as many results.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                *operation,
                *a,
                *b,
                *d,
                *d,
                preference.0,
                TRIED as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        let count = if status.result().is_ok() { usize::try_from(count).unwrap_or(0) } else { 0 };
        let usable = found.iter().take(count).filter(|found| found.state.result().is_ok());
        usable.map(|found| Algorithm { words: found.algo.data, workspace: found.workspaceSize }).collect()
    }

    /// A product that can be started.
    ///
    /// # Errors
    /// The library, or this version of it, cannot do it this way.
    pub(super) fn prepare(
        self: &Arc<Self>,
        product: &MatrixProduct,
        algorithm: Algorithm,
    ) -> Result<Prepared, CudaError> {
        let description = Description::new(self, product).map_err(failed("describing a product"))?;
        let algorithm_there = sys::cublasLtMatmulAlgo_t { data: algorithm.words };
        let mut found = nothing();
        let Description { operation, layouts: [a, b, d], .. } = &description;
        // SAFETY: all descriptions live.
        let checked = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                self.handle,
                *operation,
                *a,
                *b,
                *d,
                *d,
                &algorithm_there,
                &mut found,
            )
        };
        checked.result().map_err(failed("checking an algorithm"))?;
        if found.workspaceSize > algorithm.workspace {
            return Err(failed("checking an algorithm")(CublasError(
                sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
            )));
        }
        Ok(Prepared { description, algorithm: algorithm_there, workspace: algorithm.workspace })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // What it has started may still run; an error stays with the device.
        let _ = self.device.wait("running the program");
        // SAFETY: made by `open`, and every product that was described with it is gone. An error leaves memory behind.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// A product, an algorithm, and all that the library wants to know about them.
pub(super) struct Prepared {
    description: Description,
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

impl Prepared {
    /// Starts it behind what runs on the device.
    ///
    /// # Safety
    /// A, B and D are the addresses of matrices as the product describes them, and the workspace has the algorithm's bytes.
    pub(super) unsafe fn start(
        &self,
        device: &Device,
        [a, b, d]: [u64; 3],
        workspace: u64,
    ) -> Result<(), CudaError> {
        let Description { library, operation, layouts } = &self.description;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let scale = |number: &f32| std::ptr::from_ref(number).cast::<c_void>();
        device.enter()?;
        // SAFETY: the caller's promise; the scales are read before the call returns.
        let started = unsafe {
            result::matmul(
                library.handle,
                *operation,
                scale(&one),
                scale(&zero),
                a as *const c_void,
                layouts[0],
                b as *const c_void,
                layouts[1],
                d as *const c_void,
                layouts[2],
                d as *mut c_void,
                layouts[2],
                &self.algorithm,
                workspace as *mut c_void,
                self.workspace,
                device.stream.cu_stream().cast(),
            )
        };
        started.map_err(failed("multiplying matrices"))
    }
}

/// The operation and the layouts of A, B and D, as the library keeps them.
struct Description {
    library: Arc<Library>,
    operation: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
}

// SAFETY: a description does not change after it was made, so any thread may read it.
unsafe impl Send for Description {}
// SAFETY: as above.
unsafe impl Sync for Description {}

impl Description {
    fn new(library: &Arc<Library>, product: &MatrixProduct) -> Result<Self, CublasError> {
        let compute = match product.tf32 {
            true => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let operation = result::create_matmul_desc(compute, number_type(DType::F32))?;
        let mut description =
            Description { library: Arc::clone(library), operation, layouts: [std::ptr::null_mut(); 3] };
        let [a, b, _] = &product.matrices;
        description.transpose(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA, a)?;
        description.transpose(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB, b)?;
        let types = [product.operands, product.operands, product.result];
        for (at, (matrix, dtype)) in product.matrices.iter().zip(types).enumerate() {
            let (rows, columns, leading) = (matrix.rows as u64, matrix.columns as u64, matrix.leading as i64);
            description.layouts[at] =
                result::create_matrix_layout(number_type(dtype), rows, columns, leading)?;
            description.stack(at, product.count, matrix)?;
        }
        Ok(description)
    }

    fn transpose(
        &self,
        which: sys::cublasLtMatmulDescAttributes_t,
        matrix: &Matrix,
    ) -> Result<(), CublasError> {
        let operation: i32 = matrix.is_transposed.into();
        // SAFETY: the description lives; CUBLAS_OP_N is 0 and CUBLAS_OP_T is 1, numbers of 32 bits.
        unsafe {
            let (place, bytes) = attribute(&operation);
            result::set_matmul_desc_attribute(self.operation, which, place, bytes)
        }
    }

    /// How many matrices there are, and how far apart.
    fn stack(&self, at: usize, count: usize, matrix: &Matrix) -> Result<(), CublasError> {
        use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
        let (count, apart) = (count as i32, matrix.apart as i64);
        // SAFETY: the layout lives; the attributes have 32 and 64 bits.
        unsafe {
            let (place, bytes) = attribute(&count);
            let which = Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
            result::set_matrix_layout_attribute(self.layouts[at], which, place, bytes)?;
            let (place, bytes) = attribute(&apart);
            let which = Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
            result::set_matrix_layout_attribute(self.layouts[at], which, place, bytes)
        }
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        for layout in self.layouts.iter().filter(|layout| !layout.is_null()) {
            // SAFETY: made by `new`. An error leaves a little memory behind.
            let _ = unsafe { result::destroy_matrix_layout(*layout) };
        }
        // SAFETY: as above.
        let _ = unsafe { result::destroy_matmul_desc(self.operation) };
    }
}

/// What algorithms may be.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(product: &MatrixProduct) -> Result<Self, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Preference(result::create_matmul_pref()?);
        // Parts of a sum are added up in f32, in memory aside; others are added in the type of the result.
        let reductions = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(WORKSPACE as u64))?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions)?;
        let [a, b, d] = product.matrices.map(|matrix| matrix.alignment as u32);
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d)?;
        Ok(preference)
    }

    /// Sets an attribute of as many bits as the value has.
    fn set<T>(&self, which: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<(), CublasError> {
        let (place, bytes) = attribute(value);
        // SAFETY: the preference lives, and the value is read before the call returns.
        unsafe { result::set_matmul_pref_attribute(self.0, which, place, bytes) }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `new`. An error leaves a little memory behind.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// A value and its size, as attributes are given.
fn attribute<T>(value: &T) -> (*const c_void, usize) {
    (std::ptr::from_ref(value).cast(), size_of::<T>())
}

/// Room for a result.
fn nothing() -> sys::cublasLtMatmulHeuristicResult_t {
    sys::cublasLtMatmulHeuristicResult_t {
        algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspaceSize: 0,
        state: sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
        wavesCount: 0.0,
        reserved: [0; 4],
    }
}

fn number_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        DType::F32 => sys::cudaDataType::CUDA_R_32F,
        DType::F64 | DType::I32 | DType::U32 | DType::I8 | DType::Bool => {
            unreachable!("products of {dtype} are none for a library")
        }
    }
}

/// The library's error as ours.
fn failed(what: &'static str) -> impl Fn(CublasError) -> CudaError {
    move |error| CudaError::Library { what, message: format!("{:?}", error.0) }
}
