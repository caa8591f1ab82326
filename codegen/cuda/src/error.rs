//! What can go wrong on the way to a GPU.

use kernfusion_codegen::{CodegenError, CommunicationError, DeviceError};

/// An error of NVRTC or of the driver.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CudaError {
    /// This build has no CUDA.
    #[error("this build of kernfusion has no CUDA: build it with the feature `cuda`")]
    NotBuilt,
    /// NVRTC is not installed.
    #[error(
        "NVRTC, which compiles CUDA C++, cannot be found: install it with `pip install nvidia-cuda-nvrtc-cu12`, and set \
         KERNFUSION_NVRTC to the folder that has libnvrtc.so.12 (or put that folder into LD_LIBRARY_PATH); 13 will do, too"
    )]
    NoCompiler,
    /// NVRTC is not where the environment says it is.
    #[error(
        "KERNFUSION_NVRTC names {}, which has no libnvrtc.so that can be used: {cause}", folder.display()
    )]
    NoCompilerThere {
        /// The folder.
        folder: std::path::PathBuf,
        /// What is the matter with it.
        cause: String,
    },
    /// NVRTC refuses a function, which is a mistake of this crate, or an architecture.
    #[error("NVRTC refuses `{function}` for {architecture}: {message}")]
    Compile {
        /// The function's name.
        function: String,
        /// Such as `sm_90`.
        architecture: String,
        /// NVRTC's error and the first lines of its log.
        message: String,
    },
    /// The CUDA driver is not installed.
    #[error("there is no CUDA driver on this machine (libcuda.so.1 cannot be loaded)")]
    NoDriver,
    /// NVRTC makes code that the driver is too old for.
    #[error(
        "NVRTC {nvrtc} makes code for newer drivers than this one, which knows CUDA {}.{}: install \
         `nvidia-cuda-nvrtc-cu{}` instead, or a newer driver", driver / 1000, driver % 1000 / 10, driver / 1000
    )]
    Versions {
        /// Such as 12090 for CUDA 12.9.
        driver: i32,
        /// The major version.
        nvrtc: i32,
    },
    /// The driver knows no device of that number.
    #[error("there is no CUDA device {ordinal}; the driver knows {count}")]
    NoDevice {
        /// The device that was asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The device lacks asynchronous copies or tensor cores for bf16.
    #[error(
        "the device is of the architecture {architecture}; sm_80 (A100) is the oldest that generated code runs on"
    )]
    TooOld {
        /// Such as `sm_75`.
        architecture: String,
    },
    /// The device's memory is too small.
    #[error("the device has {free} bytes of free memory, the program needs {needed}")]
    Memory {
        /// Bytes of states, inputs, arena and scratch.
        needed: usize,
        /// Bytes that the device has left.
        free: usize,
    },
    /// cublasLt is not installed.
    #[error(
        "cublasLt cannot be found: install it with `pip install nvidia-cublas-cu12`, and put the folder that has \
         libcublasLt.so.12 into LD_LIBRARY_PATH"
    )]
    NoLibrary,
    /// cublasLt reports an error.
    #[error("cublasLt: {what}: {message}")]
    Library {
        /// What was done.
        what: &'static str,
        /// The library's word for it.
        message: String,
    },
    /// NCCL is not installed.
    #[error(
        "NCCL, through which ranks on GPUs exchange, cannot be loaded: install it with `pip install nvidia-nccl-cu12`, and put the folder \
         that has libnccl.so.2 into LD_LIBRARY_PATH, or set KERNFUSION_NCCL to the file ({cause})"
    )]
    NoNccl {
        /// What was tried.
        cause: String,
    },
    /// NCCL lacks what is called.
    #[error("NCCL {version} is too old for ranks on GPUs: 2.18.1 is the oldest that they exchange through")]
    OldNccl {
        /// Such as `2.10.3`.
        version: String,
    },
    /// Another rank cannot go on.
    #[error("rank {rank} has no GPU or no NCCL to exchange through, or has failed before")]
    NoNcclThere {
        /// Which.
        rank: usize,
    },
    /// Ranks have several versions of NCCL.
    #[error("rank {rank} has NCCL {own}, and rank 0 has {first}: all ranks need the same")]
    OtherNccl {
        /// A rank that has another one than rank 0.
        rank: usize,
        /// Its version.
        own: String,
        /// That of rank 0.
        first: String,
    },
    /// NCCL reports an error.
    #[error("NCCL: {what}: {message}")]
    Nccl {
        /// What was done.
        what: &'static str,
        /// The library's words.
        message: String,
    },
    /// What connects ranks before NCCL does has failed.
    #[error("ranks cannot tell each other how to exchange through NCCL: {cause}")]
    Ranks {
        /// Why.
        cause: CommunicationError,
    },
    /// A kernel has more arguments than the driver passes.
    #[error(
        "the kernel `{function}` has {pointers} arguments, and the driver, which knows CUDA {}.{}, passes 512: install one that \
         knows 12.1 or newer", driver / 1000, driver % 1000 / 10
    )]
    Arguments {
        /// The function's name.
        function: String,
        /// How many it has.
        pointers: usize,
        /// Such as 12000 for CUDA 12.0.
        driver: i32,
    },
    /// A kernel fails; with `KERNFUSION_CUDA_SYNC=1`, when each of them is waited for.
    #[error("CUDA: the kernel `{function}`: {message}")]
    Kernel {
        /// The function's name, or what a library does.
        function: String,
        /// The driver's words.
        message: String,
    },
    /// The driver reports an error.
    #[error("CUDA: {what}: {message}")]
    Driver {
        /// What was done.
        what: &'static str,
        /// The driver's words.
        message: String,
    },
}

impl From<CudaError> for CodegenError {
    fn from(error: CudaError) -> Self {
        CodegenError::Device(DeviceError::new(error))
    }
}
