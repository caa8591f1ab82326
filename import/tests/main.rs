//! What the import of models must do.

mod architectures;
mod corrupt;
mod corrupt_onnx;
mod dropout;
mod export;
mod fixture;
mod lora;
mod onnx;
mod page;
mod saved;
mod values;
