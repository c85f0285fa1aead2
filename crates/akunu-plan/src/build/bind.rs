//! Operands from the buffers of a plan.

use super::scratch::{Activation, Form};
use super::weights::Matrix;
use crate::ops::{F16, F32, Forms, Input, Keys, Q8, Rows, U32, Values, Weight};
use crate::table::Binding;
use crate::{BufferId, NormOut};

pub(super) fn f32s(buffer: BufferId) -> F32<Binding> {
    F32(buffer.into())
}

pub(super) fn u32s(buffer: BufferId) -> U32<Binding> {
    U32(buffer.into())
}

pub(super) fn rows(buffer: BufferId) -> Rows<Binding> {
    Rows(buffer.into())
}

pub(super) fn weight(matrix: &Matrix) -> Weight<Binding> {
    Weight {
        quants: matrix.buffer.into(),
        scales_offsets: matrix.scales_offsets.map(|planes| planes.map(Binding::from)),
    }
}

/// The activation in the form that a product reads.
pub(super) fn input(x: Activation, form: Form) -> Input<Binding> {
    match form {
        Form::Q8 => Input::Q8(Q8(form_of(x.q8, x))),
        Form::F32 => Input::F32(F32(form_of(x.f32, x))),
        Form::F16 => panic!("a product of f16 binds its numbers and their scales"),
    }
}

/// The numbers and scales of its f16 form.
pub(super) fn halves(x: Activation) -> (F16<Binding>, F32<Binding>) {
    let [numbers, scales] = x.f16.unwrap_or_else(|| panic!("scratch lacks the f16 form of {x:?}"));
    (F16(numbers.into()), F32(scales.into()))
}

/// All the forms that an op writes.
pub(super) fn forms(out: NormOut, to: Activation) -> Forms<Binding> {
    Forms {
        f32: out.f32().then(|| F32(form_of(to.f32, to))),
        q8: out.q8().then(|| Q8(form_of(to.q8, to))),
        f16: out.f16().then(|| halves(to)),
    }
}

/// Scratch allocates the forms that some layer's consumers want, so the one asked for is there.
fn form_of(buffer: Option<BufferId>, of: Activation) -> Binding {
    buffer.unwrap_or_else(|| panic!("scratch lacks a form of {of:?}")).into()
}

impl super::KvLayout {
    /// The cache of one layer.
    pub(super) fn layer(&self, layer: usize) -> (Keys<Binding>, Values<Binding>) {
        let offset = self.layer_bytes * layer as u64;
        (Keys(Binding { buffer: self.k, offset }), Values(Binding { buffer: self.v, offset }))
    }
}
