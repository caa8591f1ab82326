//! The element types of ONNX.

use crate::call::Fault;
use kernfusion_ir::DType;

/// What an element type of ONNX is here, and how many bytes an element takes in a file.
pub(crate) fn element_type(code: i64) -> Result<(DType, usize), Fault> {
    match code {
        1 => Ok((DType::F32, 4)),
        3 => Ok((DType::I8, 1)),
        6 => Ok((DType::I32, 4)),
        7 => Ok((DType::I32, 8)),
        9 => Ok((DType::Bool, 1)),
        10 => Ok((DType::F16, 2)),
        11 => Ok((DType::F64, 8)),
        12 => Ok((DType::U32, 4)),
        16 => Ok((DType::BF16, 2)),
        other => {
            const OTHERS: [(i64, &str); 7] = [
                (2, "uint8"),
                (4, "uint16"),
                (5, "int16"),
                (8, "string"),
                (13, "uint64"),
                (14, "complex64"),
                (15, "complex128"),
            ];
            let name = OTHERS.iter().find(|(code, _)| *code == other).map(|(_, name)| name.to_string());
            Err(format!(
                "no tensor here is of {}",
                name.unwrap_or_else(|| format!("the element type {other}"))
            ))
        }
    }
}
