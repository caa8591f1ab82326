//! Activation functions, as methods of tensors.

use crate::trace::Tensor;
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

/// Which form of GELU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gelu {
    /// The exact form.
    #[default]
    Erf,
    /// The approximation that GPT-2 was trained with.
    Tanh,
}

/// An activation function by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// [`Tensor::relu`]
    Relu,
    /// [`Tensor::sigmoid`]
    Sigmoid,
    /// [`Tensor::tanh`]
    Tanh,
    /// [`Tensor::swish`]
    Swish,
    /// [`Tensor::gelu`]
    Gelu,
    /// [`Tensor::gelu_tanh`]
    GeluTanh,
}

impl From<Gelu> for Activation {
    fn from(form: Gelu) -> Self {
        match form {
            Gelu::Erf => Activation::Gelu,
            Gelu::Tanh => Activation::GeluTanh,
        }
    }
}

impl Tensor {
    /// The activation asked for.
    #[track_caller]
    pub fn activate(&self, activation: Activation) -> Tensor {
        match activation {
            Activation::Relu => self.relu(),
            Activation::Sigmoid => self.sigmoid(),
            Activation::Tanh => self.tanh(),
            Activation::Swish => self.swish(),
            Activation::Gelu => self.gelu(),
            Activation::GeluTanh => self.gelu_tanh(),
        }
    }

    /// max(x, 0), whose derivative at 0 is 0.
    #[track_caller]
    pub fn relu(&self) -> Tensor {
        self.le(0.0).select(0.0, self)
    }

    /// x for x > 0, else slope · x.
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Tensor {
        self.gt(0.0).select(self, self * slope)
    }

    /// ln(1 + eˣ), written so that it does not overflow.
    #[track_caller]
    pub fn softplus(&self) -> Tensor {
        self.maximum(0.0) + ((-self.abs()).exp() + 1.0).log()
    }

    /// x · sigmoid(x), also called SiLU (Ramachandran, Zoph, Le, 2017).
    #[doc(alias = "silu")]
    #[track_caller]
    pub fn swish(&self) -> Tensor {
        self * self.sigmoid()
    }

    /// most · tanh(x / most): nearly x where that is small, and never beyond ±most.
    #[track_caller]
    pub fn softcap(&self, most: f64) -> Tensor {
        (self / most).tanh() * most
    }

    /// x · Φ(x) = x/2 · (1 + erf(x/√2)) (Hendrycks, Gimpel, 2016).
    #[track_caller]
    pub fn gelu(&self) -> Tensor {
        self * 0.5 * ((self * FRAC_1_SQRT_2).erf() + 1.0)
    }

    /// x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), the approximation in the same paper.
    #[track_caller]
    pub fn gelu_tanh(&self) -> Tensor {
        let inner = (self.square() * self * 0.044715 + self) * FRAC_2_PI.sqrt();
        self * 0.5 * (inner.tanh() + 1.0)
    }
}
