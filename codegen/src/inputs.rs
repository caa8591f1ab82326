//! The inputs of a run.

use crate::CodegenError;
use kernfusion_ir::{Tensor, TensorType};

/// Checks that every declared input is there exactly once and of its type.
///
/// # Errors
/// [`CodegenError::Input`]; of an unknown name it lists those that there are.
pub fn check_inputs(
    declared: &[(&str, &TensorType)],
    inputs: &[(&str, &Tensor)],
) -> Result<(), CodegenError> {
    let unfit = |name: &str, reason: String| Err(CodegenError::Input { name: name.into(), reason });
    for (at, (name, tensor)) in inputs.iter().enumerate() {
        let Some((_, ty)) = declared.iter().find(|(other, _)| other == name) else {
            let names: Vec<_> = declared.iter().map(|(name, _)| *name).collect();
            return unfit(name, format!("there is no such input (there are: {})", names.join(", ")));
        };
        if inputs[..at].iter().any(|(other, _)| other == name) {
            return unfit(name, "is given twice".into());
        }
        if tensor.ty() != **ty {
            return unfit(name, format!("expects {ty}, got {}", tensor.ty()));
        }
    }
    match declared.iter().find(|(name, _)| inputs.iter().all(|(other, _)| other != name)) {
        Some((name, ty)) => unfit(name, format!("is missing; it is {ty}")),
        None => Ok(()),
    }
}
