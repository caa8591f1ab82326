//! Buffers that can be computed, such as positions and causal masks. Where they are, the compiler knows what they hold, as it does of a model
//! that is written in Rust.

use kernfusion::HostTensor;
use kernfusion::passes::ClosedForm;
use kernfusion_ir::TensorType;

/// Whether a value of this type may have a form: whole numbers, truth values, and scalars.
pub(crate) fn may_have_form(ty: &TensorType) -> bool {
    !ty.dtype.is_float() || ty.rank() == 0
}

/// The form of a value, if it has one.
pub(crate) fn closed_form(value: &HostTensor) -> Option<ClosedForm> {
    let ty = value.ty();
    may_have_form(&ty).then(|| ClosedForm::recognise(&ty, &value.to_f64())).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion::trace::Trace;
    use kernfusion_ir::DType;
    use kernfusion_ir::evaluate::{Precision, evaluate};

    #[test]
    fn buffers_are_traced_as_the_values_that_they_hold() {
        let mask = TensorType::new(DType::Bool, [1, 2, 3]);
        for value in [
            HostTensor::new([2, 3], [-1, 3, 7, -1, 3, 7]),
            HostTensor::new([2], [4, 4]),
            HostTensor::new([], [2.5f32]),
            HostTensor::from_f64(&mask, &[1.0, 1.0, 0.0, 1.0, 1.0, 1.0]),
        ] {
            let trace = Trace::new();
            let traced = trace.closed_form(closed_form(&value).unwrap(), &value.ty());
            let program = trace.finish(&[("y", &traced)]).unwrap();
            let result = evaluate(&program.graph, &Default::default(), Precision::Declared).unwrap();
            assert_eq!(HostTensor::from_f64(&result["y"].ty, &result["y"].values), value);
        }
        assert_eq!(
            closed_form(&HostTensor::new([2], [1.0f32, 1.0])),
            None,
            "a buffer of floats has other values tomorrow"
        );
    }
}
