//! The results of a run.

use crate::CodegenError;
use kernfusion_ir::Tensor;
use kernfusion_ir::kernel::Microbatches;

/// Named results of a run.
#[derive(Debug, Clone, Default)]
pub struct Outputs(Vec<(String, Tensor)>);

impl Outputs {
    /// These results in this order.
    pub fn new(outputs: Vec<(String, Tensor)>) -> Self {
        Outputs(outputs)
    }

    /// The output of that name.
    ///
    /// # Errors
    /// There is none; the error lists those that there are.
    pub fn get(&self, name: &str) -> Result<&Tensor, CodegenError> {
        let found = self.0.iter().find(|(other, _)| other == name).map(|(_, tensor)| tensor);
        let names = || self.0.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| output_error(name, format!("is not there (there are: {})", names())))
    }

    /// The only element of the output of that name, whatever its dtype, as `f32`.
    ///
    /// # Errors
    /// There is no such output, or it has another number of elements.
    #[doc(alias = "item")]
    pub fn scalar(&self, name: &str) -> Result<f32, CodegenError> {
        let output = self.get(name)?;
        match output.to_f64()[..] {
            [value] => Ok(value as f32),
            _ => Err(output_error(name, format!("is {}, not one number", output.ty()))),
        }
    }

    /// All outputs, in the program's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The results of a program of microbatches, from those of each of them and of the tail.
    ///
    /// # Panics
    /// If one is missing.
    pub fn joined(microbatches: &Microbatches, parts: &[Outputs], tail: &Outputs) -> Self {
        let result = |(name, axis): &(String, Option<usize>)| {
            let found = "body and tail have all results";
            let value = match axis {
                None => tail.get(name).expect(found).clone(),
                Some(axis) => joined(parts.iter().map(|part| part.get(name).expect(found)).collect(), *axis),
            };
            (name.clone(), value)
        };
        Outputs::new(microbatches.outputs.iter().map(result).collect())
    }
}

fn output_error(name: &str, reason: String) -> CodegenError {
    CodegenError::Output { name: name.into(), reason }
}

/// Tensors of one type, one after another along an axis.
fn joined(parts: Vec<&Tensor>, axis: usize) -> Tensor {
    let part = parts[0].ty();
    let mut ty = part.clone();
    ty.shape[axis] *= parts.len();
    let rows: usize = part.shape[..axis].iter().product();
    let bytes: Vec<_> = parts.iter().map(|part| part.bytes()).collect();
    let row = part.bytes() / rows.max(1);
    let rows = (0..rows).flat_map(|at| bytes.iter().map(move |part| &part[at * row..(at + 1) * row]));
    Tensor::from_bytes(&ty, &rows.collect::<Vec<_>>().concat()).expect("the parts' bytes are the whole's")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_is_not_there_is_an_error_with_those_that_are() {
        let named = |name: &str, values: Vec<f32>| (name.to_string(), Tensor::new([values.len()], values));
        let outputs = Outputs::new(vec![named("loss", vec![0.5]), named("logits", vec![1.0, 2.0])]);
        assert_eq!(outputs.scalar("loss"), Ok(0.5));
        let message = |result: Result<f32, CodegenError>| result.unwrap_err().to_string();
        assert_eq!(message(outputs.scalar("los")), "output \"los\" is not there (there are: loss, logits)");
        assert_eq!(message(outputs.scalar("logits")), "output \"logits\" is f32[2], not one number");
    }

    #[test]
    fn parts_are_joined_along_their_axis() {
        let (a, b) = (
            Tensor::new([2, 1, 2], vec![1.5f32, 2.5, 3.5, 4.5]),
            Tensor::new([2, 1, 2], vec![5.0f32, 6.0, 7.0, 8.0]),
        );
        let inner = Tensor::new([2, 2, 2], vec![1.5f32, 2.5, 5.0, 6.0, 3.5, 4.5, 7.0, 8.0]);
        assert_eq!(joined(vec![&a, &b], 1), inner);
        let outer = Tensor::new([4, 1, 2], vec![1.5f32, 2.5, 3.5, 4.5, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(joined(vec![&a, &b], 0), outer);
    }
}
