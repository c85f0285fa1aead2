//! The types of operands. Each contains a `T`: its binding, its extent, or a pointer to it.

use crate::{DType, KvType, MoveKind, OutputForms};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Read and written.
    Update,
}

/// A field of a row that a command depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowField {
    Token,
    Position,
    KvLen,
    Start,
}

impl RowField {
    pub fn name(self) -> &'static str {
        match self {
            RowField::Token => "token",
            RowField::Position => "position",
            RowField::KvLen => "kv_len",
            RowField::Start => "start",
        }
    }
}

/// The contents of a binding, for checking sizes and comparing devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    F32,
    /// Rows of [`crate::q8`] blocks.
    Q8,
    F16,
    /// Rows of [`crate::eights`].
    F8,
    U32,
    /// Columns, as u32.
    Order,
    /// Numbers of experts or of rows, as u32.
    Indices,
    /// Rows of the pass, with the fields that are read.
    Rows(&'static [RowField]),
    /// The single move of the pass.
    Moves(MoveKind),
    /// Keys in the device's [`crate::KeyOrder`].
    Keys(KvType),
    Values(KvType),
    /// Numbers of blocks of the cache, by runs of positions ([`crate::blocks`]).
    Blocks,
    /// Records of [`crate::sample`].
    Sampling,
    /// A weight; for an affine type, its quants.
    Weight(DType),
    /// Scales or offsets of an affine type.
    Scales(DType),
}

impl Content {
    /// Whether it is a plane of a weight.
    pub fn is_weight(self) -> bool {
        matches!(self, Content::Weight(_) | Content::Scales(_))
    }
}

/// A binding of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub name: &'static str,
    pub access: Access,
    pub content: Content,
}

/// Iterates over the bindings of a command.
#[derive(Debug)]
pub struct Cursor<'a, T> {
    rest: std::slice::Iter<'a, T>,
}

impl<'a, T: Copy> Cursor<'a, T> {
    #[inline(always)]
    pub fn new(bindings: &'a [T]) -> Cursor<'a, T> {
        Cursor { rest: bindings.iter() }
    }

    /// Commands have as many bindings as their kernel has slots.
    #[inline(always)]
    fn next(&mut self) -> T {
        match self.rest.next() {
            Some(binding) => *binding,
            None => panic!("a command has fewer bindings than its kernel"),
        }
    }
}

/// All operands of an op.
pub trait OperandSet<T: Copy>: Sized {
    type Op;

    fn slots(op: Self::Op) -> Vec<Slot>;
    fn put(&self, op: Self::Op, to: &mut Vec<T>);
    fn take(op: Self::Op, from: &mut Cursor<'_, T>) -> Self;
}

/// An operand, which may consist of several bindings.
pub trait Operand<T: Copy>: Sized {
    /// The options that determine the number of bindings and their contents.
    type Spec;

    fn slots(name: &'static str, access: Access, spec: Self::Spec, to: &mut Vec<Slot>);
    fn put(&self, to: &mut Vec<T>);
    fn take(spec: Self::Spec, from: &mut Cursor<'_, T>) -> Self;
}

/// Operands of one binding.
macro_rules! single {
    ($($(#[$doc:meta])* $name:ident: $spec:ty => $of:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<T>(pub T);

        impl<T: Copy> Operand<T> for $name<T> {
            type Spec = $spec;

            fn slots(name: &'static str, access: Access, spec: $spec, to: &mut Vec<Slot>) {
                let content: fn($spec) -> Content = $of;
                to.push(Slot { name, access, content: content(spec) });
            }

            fn put(&self, to: &mut Vec<T>) {
                to.push(self.0);
            }

            #[inline(always)]
            fn take(_: $spec, from: &mut Cursor<'_, T>) -> Self {
                $name(from.next())
            }
        }
    )*};
}

single! {
    /// `[f32]`
    F32: () => |()| Content::F32;
    /// `[u32]`
    U32: () => |()| Content::U32;
    /// A column for each place of a row, as u32. Kernels limit the numbers to the columns that there are.
    Order: () => |()| Content::Order;
    /// Numbers of experts or of rows that another command of the pass writes, as u32. Kernels limit them to those that
    /// there are.
    Indices: () => |()| Content::Indices;
    /// Activations rounded to int8 blocks ([`crate::q8`]).
    Q8: () => |()| Content::Q8;
    /// `[f16]`
    F16: () => |()| Content::F16;
    /// Rows of E4M3 ([`crate::eights`])
    F8: () => |()| Content::F8;
    /// The rows of the pass, with the fields that the op reads.
    Rows: &'static [RowField] => Content::Rows;
    /// The single move of the pass, of the op's kind.
    Moves: MoveKind => Content::Moves;
    /// Keys of one layer's cache.
    Keys: KvType => Content::Keys;
    /// Values of one layer's cache: `[kv head][position][head dim]`.
    Values: KvType => Content::Values;
    /// `[u32]`: the block of the cache in which each run of positions is ([`crate::blocks`]).
    Blocks: () => |()| Content::Blocks;
    /// Records of [`crate::sample`].
    Sampling: () => |()| Content::Sampling;
}

/// The activations that a product reads: int8 blocks for quantised weights, f32 for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<T> {
    F32(F32<T>),
    Q8(Q8<T>),
}

impl<T: Copy> Input<T> {
    /// The binding, whatever its form.
    #[inline(always)]
    pub fn get(self) -> T {
        match self {
            Input::F32(F32(binding)) | Input::Q8(Q8(binding)) => binding,
        }
    }
}

impl<T: Copy> Operand<T> for Input<T> {
    type Spec = bool;

    fn slots(name: &'static str, access: Access, q8: bool, to: &mut Vec<Slot>) {
        to.push(Slot { name, access, content: if q8 { Content::Q8 } else { Content::F32 } });
    }

    fn put(&self, to: &mut Vec<T>) {
        to.push(self.get());
    }

    #[inline(always)]
    fn take(q8: bool, from: &mut Cursor<'_, T>) -> Self {
        let binding = from.next();
        if q8 { Input::Q8(Q8(binding)) } else { Input::F32(F32(binding)) }
    }
}

/// How a product finds the expert of each row: by where the rows of each expert begin, if rows are sorted by expert, or by
/// the picks of the router, in whose order rows are otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing<T> {
    Starts(Indices<T>),
    Picks(Indices<T>),
}

impl<T: Copy> Operand<T> for Routing<T> {
    /// Whether by picks.
    type Spec = bool;

    fn slots(_: &'static str, access: Access, picked: bool, to: &mut Vec<Slot>) {
        let name = if picked { "picks" } else { "starts" };
        to.push(Slot { name, access, content: Content::Indices });
    }

    fn put(&self, to: &mut Vec<T>) {
        let (Routing::Starts(Indices(binding)) | Routing::Picks(Indices(binding))) = self;
        to.push(*binding);
    }

    #[inline(always)]
    fn take(picked: bool, from: &mut Cursor<'_, T>) -> Self {
        let binding = Indices(from.next());
        if picked { Routing::Picks(binding) } else { Routing::Starts(binding) }
    }
}

/// Names of a weight's planes: quants (or the whole weight), scales, offsets.
pub type PlaneNames = [&'static str; 3];

/// A matrix in the layout of its file: one plane, two with scales, or three with scales and offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight<T> {
    pub quants: T,
    /// As far as the type has planes of them.
    pub scales_offsets: [Option<T>; 2],
}

impl<T: Copy> Weight<T> {
    /// Of a type whose weights are in one plane.
    pub fn of_one_plane(quants: T) -> Weight<T> {
        Weight { quants, scales_offsets: [None; 2] }
    }

    /// The planes present, in order.
    pub fn planes(self) -> impl Iterator<Item = T> {
        std::iter::once(self.quants).chain(self.scales_offsets.into_iter().flatten())
    }
}

impl<T: Copy> Operand<T> for Weight<T> {
    type Spec = (PlaneNames, DType);

    fn slots(_: &'static str, access: Access, (names, dtype): Self::Spec, to: &mut Vec<Slot>) {
        for (plane, name) in names.into_iter().enumerate().take(dtype.planes()) {
            let content = if plane == 0 { Content::Weight(dtype) } else { Content::Scales(dtype) };
            to.push(Slot { name, access, content });
        }
    }

    fn put(&self, to: &mut Vec<T>) {
        to.extend(self.planes());
    }

    #[inline(always)]
    fn take((_, dtype): Self::Spec, from: &mut Cursor<'_, T>) -> Self {
        let quants = from.next();
        let scales = if dtype.planes() > 1 { Some(from.next()) } else { None };
        let offsets = if dtype.planes() > 2 { Some(from.next()) } else { None };
        Weight { quants, scales_offsets: [scales, offsets] }
    }
}

/// Names of the bindings of [`Forms`]: f32, q8, f16 and its scales.
pub type FormNames = [&'static str; 4];

/// Rows in the forms that their consumers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forms<T> {
    pub f32: Option<F32<T>>,
    pub q8: Option<Q8<T>>,
    /// The numbers, and the scale of each row.
    pub f16: Option<(F16<T>, F32<T>)>,
    pub rounding: Rounding,
}

/// How rows of numbers with a scale are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// f16 ([`crate::halves`]).
    F16,
    /// The same in the order of lanes.
    F16Lanes,
    /// E4M3 ([`crate::eights`]).
    F8,
}

impl Rounding {
    pub fn of(out: OutputForms) -> Rounding {
        match out {
            _ if out.eights() => Rounding::F8,
            _ if out.lanes() => Rounding::F16Lanes,
            _ => Rounding::F16,
        }
    }
}

impl<T: Copy> Operand<T> for Forms<T> {
    type Spec = (OutputForms, FormNames);

    fn slots(_: &'static str, access: Access, (out, names): Self::Spec, to: &mut Vec<Slot>) {
        let [f32, q8, f16, scales] = names;
        let mut push = |name, content| to.push(Slot { name, access, content });
        if out.f32() {
            push(f32, Content::F32);
        }
        if out.q8() {
            push(q8, Content::Q8);
        }
        if out.f16() {
            push(f16, if out.eights() { Content::F8 } else { Content::F16 });
            push(scales, Content::F32);
        }
    }

    fn put(&self, to: &mut Vec<T>) {
        to.extend(self.f32.map(|f32| f32.0));
        to.extend(self.q8.map(|q8| q8.0));
        if let Some((numbers, scales)) = self.f16 {
            to.extend([numbers.0, scales.0]);
        }
    }

    #[inline(always)]
    fn take((out, _): Self::Spec, from: &mut Cursor<'_, T>) -> Self {
        Forms {
            f32: if out.f32() { Some(F32(from.next())) } else { None },
            q8: if out.q8() { Some(Q8(from.next())) } else { None },
            f16: if out.f16() { Some((F16(from.next()), F32(from.next()))) } else { None },
            rounding: Rounding::of(out),
        }
    }
}
