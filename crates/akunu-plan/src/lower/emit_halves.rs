//! The commands that round rows, and those of products of f16 rows and of FP8 rows.

use super::emit::{Emitter, need};
use super::graph::{Part, Product, RowCount, Value};
use super::pass::{Products, needs_unpacking};
use super::place::Placed;
use crate::ops::{
    EightMatmul, EightMatmulOperands, F8, F16, F32, HalfMatmul, HalfMatmulOperands, HalfQkv, HalfQkvOperands,
    InputForm, MatmulParams, Op, QkvParams, Round, RoundOperands, RoundParams, Rounding, Unpack,
    UnpackOperands, UnpackParams, Weight,
};
use crate::table::Binding;
use crate::{BufferId, DType, OutputForms, Side};

impl Emitter<'_> {
    /// Multiplies packed weights, or converts them to f16 side by side first.
    pub(super) fn half_product(&mut self, label: &str, product: &Product) {
        let outputs = product.parts.iter().map(|part| part.matrix.rows as u32).sum();
        let packed = product.packed || self.shape.products == Products::Packed;
        let (dtype, weight) = match &product.parts[..] {
            [q, k, v] if packed => return self.half_qkv(label, product, [q, k, v]),
            [part] if packed || !needs_unpacking(product) => (part.matrix.dtype, (&part.matrix).into()),
            parts => (DType::F16, Weight::of_one_plane(self.unpack(label, product.x, parts).into())),
        };
        debug_assert!(product.activation.is_none(), "{label}");
        let bias = product.parts[0].bias;
        let f16 = product.leaves_f16;
        let (residual, rows) = (product.residual.is_some(), product.rows);
        let op = HalfMatmul { weight: dtype, bias: bias.is_some(), residual, f16, rows };
        let operands = HalfMatmulOperands {
            x: self.f16s(product.x),
            x_scales: self.scales(product.x),
            weight,
            out: (!f16).then(|| self.columns(product.out)),
            out_f16: f16.then(|| self.f16_columns(product.out)),
            bias: bias.map(|bias| F32(bias.into())),
            residual: product.residual.map(|residual| self.f32s(residual)),
        };
        let params = MatmulParams { outputs, ..self.matmul_params(product, &product.parts[0].matrix) };
        self.push(label, op.command(operands, params));
    }

    pub(super) fn eight_product(&mut self, label: &str, product: &Product, part: &Part) {
        debug_assert!(product.activation.is_none(), "{label}");
        let op = EightMatmul { bias: part.bias.is_some(), residual: product.residual.is_some() };
        let (F16(x), x_scales) = self.eights(product.x);
        let operands = EightMatmulOperands {
            x: F8(x),
            x_scales,
            weight: (&part.matrix).into(),
            out: self.columns(product.out),
            bias: part.bias.map(|bias| F32(bias.into())),
            residual: product.residual.map(|residual| self.f32s(residual)),
        };
        self.push(label, op.command(operands, self.matmul_params(product, &part.matrix)));
    }

    fn half_qkv(&mut self, label: &str, product: &Product, [q, k, v]: [&Part; 3]) {
        let op = HalfQkv { weight: q.matrix.dtype };
        let operands = HalfQkvOperands {
            x: self.f16s(product.x),
            x_scales: self.scales(product.x),
            q_weight: (&q.matrix).into(),
            k_weight: (&k.matrix).into(),
            v_weight: (&v.matrix).into(),
            out: self.columns(product.out),
        };
        let [q, k, v] = [q, k, v].map(|part| part.matrix.rows as u32);
        self.push(label, op.command(operands, QkvParams { inputs: self.cols(product.x), q, k, v }));
    }

    /// The weights of a product as f16, one matrix after the other.
    fn unpack(&mut self, label: &str, x: Value, parts: &[Part]) -> BufferId {
        let (unpacked, inputs) = (self.unpacked(), self.cols(x));
        let mut first = 0;
        for part in parts {
            let offset = first * u64::from(inputs) * 2;
            let out_f16 = F16(Binding { buffer: unpacked, offset });
            let operands = UnpackOperands { weight: (&part.matrix).into(), out_f16 };
            let params = UnpackParams { inputs, outputs: part.matrix.rows as u32 };
            let command = Unpack { weight: part.matrix.dtype }.command(operands, params);
            self.push(format!("{label}.unpack"), command);
            first += part.matrix.rows as u64;
        }
        unpacked
    }

    /// Present if any product converts its weights.
    fn unpacked(&self) -> BufferId {
        self.unpacked.unwrap_or_else(|| panic!("{} has no buffer for unpacked weights", self.shape.name))
    }

    /// Rounds a value from f32 to the forms that are read but not written by its producer: to f16 or FP8 on the device, which
    /// alone reads these.
    pub(super) fn round(&mut self, label: &str, value: Value) {
        let (wanted, written) = (self.forms.wanted(value), self.forms.written(value));
        let prefix = label.rsplit_once('.').map_or(String::new(), |(prefix, _)| format!("{prefix}."));
        let role = &self.graph.values[value.0].role;
        let side = self.side;
        let device = if side.is_host() { Side::Device } else { side };
        let (narrow, narrows) = match Rounding::of(wanted) {
            Rounding::F16 => (OutputForms::F16, "halve"),
            Rounding::F16Lanes => (OutputForms::F16Lanes, "halve"),
            Rounding::F8 => (OutputForms::F8, "round"),
        };
        let narrowed = written.f16() && written.eights() == wanted.eights();
        for (missing, form, on, name) in [
            (wanted.q8() && !written.q8(), OutputForms::Q8, side, "quantise"),
            (wanted.f16() && !narrowed, narrow, device, narrows),
        ] {
            if missing {
                let input = match written.f16() {
                    true => InputForm::F16 { bias: false },
                    false => InputForm::F32,
                };
                let operands = RoundOperands {
                    x: (!input.f16()).then(|| self.f32s(value)),
                    x_f16: input.f16().then(|| self.f16s(value)),
                    x_scales: input.f16().then(|| self.scales(value)),
                    out: self.bind_forms(form, value),
                };
                let times = match self.graph.values[value.0].rows {
                    RowCount::Times(times) => times as u32,
                    _ => 1,
                };
                let params = RoundParams { cols: self.cols(value), times };
                let command = Round { input, out: form }.command(operands, params);
                self.side = on;
                self.push(format!("{prefix}{role}_{name}"), command);
            }
        }
        self.side = side;
    }

    /// Its rows of FP8, and their scales.
    pub(super) fn eights(&self, value: Value) -> (F16<Binding>, F32<Binding>) {
        let Placed { f8, f8_scales, .. } = self.places[&value];
        (F16(need(f8, "f8", value).into()), F32(need(f8_scales, "f8_scales", value).into()))
    }
}
