//! The inputs of a run.

use crate::{CodegenError, listed};
use kernfusion_ir::{Tensor, TensorType};

/// Why another batch size is no matter of a run.
const FIXED: &str = "; extents are fixed when a program is traced: trace it again for others";

/// How many missing inputs a message has.
const MOST: usize = 8;

/// Checks that every declared input is there exactly once and of its type.
///
/// # Errors
/// [`CodegenError::Input`], which lists those that there are if a name is unknown; [`CodegenError::MissingInputs`] if several are missing.
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
            let got = tensor.ty();
            let hint = if got.dtype == ty.dtype && got.rank() == ty.rank() { FIXED } else { "" };
            return unfit(name, format!("expects {ty}, got {got}{hint}"));
        }
    }
    let missing = declared.iter().filter(|(name, _)| inputs.iter().all(|(other, _)| other != name));
    match missing.collect::<Vec<_>>()[..] {
        [] => Ok(()),
        [(name, ty)] => unfit(name, format!("is missing; it is {ty}")),
        ref several => {
            let several: Vec<_> = several.iter().map(|(name, ty)| format!("\"{name}\" ({ty})")).collect();
            Err(CodegenError::MissingInputs(listed(&several, MOST)))
        }
    }
}
