//! Determines the forms in which values are written: those that their consumers read, as far as their producers support
//! them.

use super::Context;
use super::graph::{Action, Form, Graph, Heads, Product, Read, Step, Value};
use super::pass::Products;
use crate::ops::{Rounding, RowSet};
use crate::{DType, KvType, OutputForms, halves, q8};

/// The properties of a table that its commands depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'a> {
    pub context: &'a Context<'a>,
    pub name: &'static str,
    pub rows: usize,
    pub logit_rows: usize,
    pub products: Products,
}

impl Shape<'_> {
    /// The form in which an operation reads a value. Only few rows need logits and the output matrix is large, so it is
    /// not converted to f16 in memory.
    pub fn form_of(&self, how: Read) -> Form {
        match how {
            Read::F32 => Form::F32,
            Read::F16 | Read::Lanes => Form::F16,
            Read::Input(dtype, RowSet::All) if self.products != Products::Plain && dtype != DType::F32 => {
                Form::F16
            }
            Read::Input(dtype, _) | Read::Unhalved(dtype) => unhalved(dtype),
        }
    }

    /// The forms that an operation writes, out of those that are wanted. The host writes no f16.
    fn writes(&self, step: &Step, value: Value, wanted: OutputForms) -> OutputForms {
        match &step.action {
            _ if step.side.is_host() && wanted.f16() => OutputForms::F32,
            Action::Norm { .. } | Action::Activate { .. } | Action::Glu { .. } if wanted.eights() => wanted,
            // Attention leaves f16 faster than f32, and its numbers are f16 already.
            Action::Attend(attend)
                if wanted == OutputForms::F8 && self.attention_writes(attend.heads, OutputForms::F16) =>
            {
                OutputForms::F16
            }
            _ if wanted.eights() => OutputForms::F32,
            Action::Norm { .. }
            | Action::Activate { .. }
            | Action::Glu { .. }
            | Action::GluProduct { .. }
            | Action::ExpertGlu { packed: false, .. } => wanted,
            Action::Gather { out, .. } if *out == value => wanted,
            Action::HeadsApart { out, .. } if *out == value => wanted,
            // Products that multiply in f16 have it rounded with a scale for each row.
            Action::LatentAttend { .. } | Action::HeadsTogether { .. } if !wanted.f16() => wanted,
            Action::Product(product) if product.leaves_f16 => OutputForms::F16,
            Action::Product(product) if product.activation.is_some() => wanted,
            Action::Product(Product { defers, .. }) | Action::AllReduce { defers, .. }
                if defers.is_some_and(|defers| defers.normed == value) =>
            {
                wanted
            }
            Action::Attend(attend) if self.attention_writes(attend.heads, wanted) => wanted,
            _ => OutputForms::F32,
        }
    }

    /// Attention is distributed over KV heads, so no worker has a whole row. It can round its own output to int8 if
    /// that gives whole blocks, and to f16 if its values are f16 already, so that rows need no scale.
    fn attention_writes(&self, heads: Heads, forms: OutputForms) -> bool {
        let whole = (heads.count / heads.kv * heads.dim).is_multiple_of(q8::BLOCK);
        (!forms.q8() || whole) && (!forms.f16() || self.context.options.kv == KvType::F16)
    }
}

/// The form in which a product reads its input that does not multiply in half precision.
pub(super) fn unhalved(dtype: DType) -> Form {
    if dtype.is_quantised() { Form::Q8 } else { Form::F32 }
}

/// The forms of a graph's values, by value.
#[derive(Debug)]
pub(super) struct ValueForms {
    /// The forms in which they are read.
    pub wanted: Vec<OutputForms>,
    /// The forms that their producers write. Other wanted forms are rounded from f32.
    pub written: Vec<OutputForms>,
}

impl ValueForms {
    pub fn new(graph: &Graph, shape: &Shape<'_>) -> ValueForms {
        let mut read: Vec<Vec<Form>> = vec![vec![]; graph.values.len()];
        let mut in_lanes = vec![false; graph.values.len()];
        for (value, how) in graph.steps.iter().flat_map(|step| step.action.reads()) {
            read[value.0].push(shape.form_of(how));
            in_lanes[value.0] |= how == Read::Lanes;
            if matches!(how, Read::Input(..) | Read::Unhalved(_)) && shape.context.options.keep_inputs {
                read[value.0].push(Form::F32);
            }
        }
        // Packed weights meet rows in the order of lanes; what their products leave is not in that order.
        let rounding = |value: usize| match shape.products {
            _ if in_lanes[value] => Rounding::F16Lanes,
            Products::Packed if !graph.is_left_in_f16(Value(value)) => Rounding::F16Lanes,
            Products::Eights => Rounding::F8,
            _ => Rounding::F16,
        };
        let wanted: Vec<OutputForms> =
            read.into_iter().enumerate().map(|(value, read)| union(read, rounding(value))).collect();
        let mut written = vec![OutputForms::F32; graph.values.len()];
        for step in &graph.steps {
            for value in step.action.writes() {
                written[value.0] = shape.writes(step, value, wanted[value.0]);
            }
        }
        ValueForms { wanted, written }
    }

    pub fn wanted(&self, value: Value) -> OutputForms {
        self.wanted[value.0]
    }

    pub fn written(&self, value: Value) -> OutputForms {
        self.written[value.0]
    }
}

/// The union of some forms, as an option of an op. `rounding`: how f16 rows are stored.
fn union(forms: impl IntoIterator<Item = Form>, rounding: Rounding) -> OutputForms {
    let (mut f32, mut q8, mut f16) = (false, false, false);
    for form in forms {
        match form {
            Form::F32 => f32 = true,
            Form::Q8 => q8 = true,
            Form::F16 => f16 = true,
        }
    }
    match (f32, q8, f16, rounding) {
        (true, true, ..) => OutputForms::Both,
        (false, true, ..) => OutputForms::Q8,
        (_, _, false, _) => OutputForms::F32,
        (true, _, _, Rounding::F16) => OutputForms::F32AndF16,
        (true, _, _, Rounding::F16Lanes) => OutputForms::F32AndF16Lanes,
        (true, _, _, Rounding::F8) => OutputForms::F32AndF8,
        (false, _, _, Rounding::F16) => OutputForms::F16,
        (false, _, _, Rounding::F16Lanes) => OutputForms::F16Lanes,
        (false, _, _, Rounding::F8) => OutputForms::F8,
    }
}

/// Whether all products over the rows of a graph can multiply in half precision.
pub(super) fn fits_halves(graph: &Graph) -> bool {
    let products = graph.products().filter(|product| product.rows == RowSet::All);
    let glus = graph.steps.iter().filter_map(|step| match &step.action {
        Action::GluProduct { x, .. } => Some(*x),
        _ => None,
    });
    products.map(|product| product.x).chain(glus).all(|x| graph.cols(x).is_multiple_of(halves::WHOLE))
}
