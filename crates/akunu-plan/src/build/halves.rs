//! Products of f16: weights are unpacked, then multiplied, by two commands.

use super::pass::{Pass, Target, bind_matrix, input_of, scales_of};
use super::scratch::{Activation, Form};
use super::weights::Matrix;
use crate::params::{MatmulParams, UnpackParams};
use crate::{BufferId, CommandBuilder, Kernel, Patch};

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
        let (out, offset) = to.out;
        let kernel = Kernel::HalfMatmul { bias: to.bias.is_some(), residual: to.residual.is_some() };
        let command = CommandBuilder::new(kernel)
            .bind(input_of(x, Form::F16))
            .bind(scales_of(x))
            .bind(self.unpacked())
            .bind_at(out, offset)
            .bind_if(to.bias)
            .bind_if(to.residual)
            .params(params)
            .grid(params.outputs as usize, self.rows)
            .patch(Patch::Rows);
        self.push(label, command);
    }

    /// Unpacks a matrix, after `start` rows of others.
    fn unpack(&mut self, label: String, matrix: &Matrix, start: usize, [inputs, outputs]: [usize; 2]) {
        let command = CommandBuilder::new(Kernel::Unpack { weight: matrix.dtype });
        let command = bind_matrix(command, matrix)
            .bind_at(self.unpacked(), start as u64 * inputs as u64 * 2)
            .params(UnpackParams { inputs: inputs as u32, outputs: outputs as u32 })
            .grid(outputs, 1);
        self.push(label, command);
    }

    /// There where any product is of f16.
    fn unpacked(&self) -> BufferId {
        match self.scratch.unpacked {
            Some(buffer) => buffer,
            None => panic!("scratch lacks room for unpacked weights"),
        }
    }
}
