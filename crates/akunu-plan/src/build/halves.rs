//! Products of f16: weights are unpacked, then multiplied, by two commands.

use super::bind;
use super::pass::{Pass, Target};
use super::scratch::{Activation, Form};
use super::weights::Matrix;
use crate::BufferId;
use crate::ops::{
    F16, HalfMatmul, HalfMatmulOperands, MatmulParams, Op, Unpack, UnpackOperands, UnpackParams,
};
use crate::table::Binding;

impl Pass<'_> {
    pub(super) fn all_in_halves(&self, matrices: &[&Matrix]) -> bool {
        matrices.iter().all(|matrix| self.form_of(matrix) == Form::F16)
    }

    /// Q, K and V are unpacked side by side, so that one product has all of them.
    pub(super) fn qkv_in_halves(&mut self, label: &str, parts: [&Matrix; 3]) {
        let [q_size, kv_size] = self.qkv_sizes();
        let inputs = self.context.config.hidden_size;
        let starts = [0, q_size, q_size + kv_size];
        for ((matrix, start), outputs) in parts.into_iter().zip(starts).zip([q_size, kv_size, kv_size]) {
            self.unpack(format!("{label}.unpack"), matrix, start, [inputs, outputs]);
        }
        let outputs = (q_size + 2 * kv_size) as u32;
        let params =
            MatmulParams { inputs: inputs as u32, outputs, out_stride: outputs, ..MatmulParams::default() };
        self.half_matmul(label.into(), self.scratch.normed, Target::plain(self.scratch.qkv, 0), params);
    }

    pub(super) fn matmul_in_halves(
        &mut self,
        label: String,
        x: Activation,
        matrix: &Matrix,
        to: Target,
        params: MatmulParams,
    ) {
        let shape = [params.inputs as usize, params.outputs as usize];
        self.unpack(format!("{label}.unpack"), matrix, 0, shape);
        self.half_matmul(label, x, to, params);
    }

    fn half_matmul(&mut self, label: String, x: Activation, to: Target, params: MatmulParams) {
        let op = HalfMatmul { bias: to.bias.is_some(), residual: to.residual.is_some() };
        let (x, x_scales) = bind::halves(x);
        let operands = HalfMatmulOperands {
            x,
            x_scales,
            weight: F16(self.unpacked().into()),
            out: to.out,
            bias: to.bias.map(bind::f32s),
            residual: to.residual.map(bind::f32s),
        };
        self.push(label, op.command(operands, params));
    }

    /// Unpacks a matrix, after `start` rows of others.
    fn unpack(&mut self, label: String, matrix: &Matrix, start: usize, [inputs, outputs]: [usize; 2]) {
        let offset = start as u64 * inputs as u64 * 2;
        let operands = UnpackOperands {
            weight: bind::weight(matrix),
            out_f16: F16(Binding { buffer: self.unpacked(), offset }),
        };
        let params = UnpackParams { inputs: inputs as u32, outputs: outputs as u32 };
        self.push(label, Unpack { weight: matrix.dtype }.command(operands, params));
    }

    /// There where any product is of f16.
    fn unpacked(&self) -> BufferId {
        match self.scratch.unpacked {
            Some(buffer) => buffer,
            None => panic!("scratch lacks room for unpacked weights"),
        }
    }
}
