//! The macros for declarative op definitions.

/// Parameter structs: plain data, the same layout in Rust, CUDA and Metal, at most 64 bytes.
macro_rules! params {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),* }

        impl $crate::ops::Describe for $name {
            fn fields(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($field), format!("{:?}", self.$field))),*]
            }
        }
    };
}

/// The operands of an op, in the order of its bindings: `name: access Type(option of the op) if condition`.
macro_rules! operands {
    ($name:ident of $op:ident as $this:ident {
        $($(#[$doc:meta])* $field:ident: $access:tt $kind:ident $(($($spec:expr),+))? $(if $condition:expr)?,)*
    }) => {
        // `derive` cannot be applied to types that a macro makes.
        pub struct $name<T> {
            $($(#[$doc])* pub $field: $crate::ops::define::field_type!($kind<T> $(if $condition)?),)*
        }

        impl<T: Copy> Clone for $name<T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T: Copy> Copy for $name<T> {}

        impl<T: std::fmt::Debug> std::fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &self.$field))*.finish()
            }
        }

        impl<T: Copy> $crate::ops::OperandSet<T> for $name<T> {
            type Op = $op;

            fn slots($this: $op) -> Vec<$crate::ops::Slot> {
                // Unused in ops without options.
                let _ = $this;
                let mut slots = Vec::with_capacity($crate::table::MAX_BINDINGS);
                $(
                    if true $(&& $condition)? {
                        let spec = ($($($spec),+)?);
                        let access = $crate::ops::define::access!($access);
                        <$kind<T> as $crate::ops::Operand<T>>::slots(stringify!($field), access, spec, &mut slots);
                    }
                )*
                slots
            }

            fn put(&self, $this: $op, to: &mut Vec<T>) {
                let _ = $this;
                $($crate::ops::define::put!(self.$field, $op, stringify!($field), to $(, $condition)?);)*
            }

            #[inline(always)]
            fn take($this: $op, from: &mut $crate::ops::Cursor<'_, T>) -> Self {
                let _ = $this;
                $name {
                    $($field: $crate::ops::define::take!($kind, ($($($spec),+)?), from $(, $condition)?),)*
                }
            }
        }
    };
}

macro_rules! field_type {
    ($kind:ident<T>) => { $kind<T> };
    ($kind:ident<T> if $condition:expr) => { Option<$kind<T>> };
}

macro_rules! access {
    (read) => {
        $crate::ops::Access::Read
    };
    (write) => {
        $crate::ops::Access::Write
    };
    (update) => {
        $crate::ops::Access::Update
    };
    // Depends on the options.
    (($access:expr)) => {
        $access
    };
}

macro_rules! put {
    ($value:expr, $op:ident, $name:expr, $to:ident) => {
        $crate::ops::Operand::put(&$value, $to)
    };
    ($value:expr, $op:ident, $name:expr, $to:ident, $condition:expr) => {{
        assert_eq!($value.is_some(), $condition, "{}: operand {}", stringify!($op), $name);
        if let Some(value) = &$value {
            $crate::ops::Operand::put(value, $to);
        }
    }};
}

macro_rules! take {
    ($kind:ident, $spec:expr, $from:ident) => {
        <$kind<T> as $crate::ops::Operand<T>>::take($spec, $from)
    };
    ($kind:ident, $spec:expr, $from:ident, $condition:expr) => {
        if $condition { Some(<$kind<T> as $crate::ops::Operand<T>>::take($spec, $from)) } else { None }
    };
}

/// The enum of all ops, and the queries of devices that apply to any op.
macro_rules! kernels {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(mod $module; pub use $module::*;)*

        /// The computation of a command: an op with its options.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kernel { $($name($name)),* }

        $(impl From<$name> for Kernel {
            fn from(op: $name) -> Kernel {
                Kernel::$name(op)
            }
        })*

        impl Kernel {
            pub fn name(self) -> String {
                match self { $(Kernel::$name(op) => op.name()),* }
            }

            /// The bindings, in order.
            pub fn bindings(self) -> Vec<Slot> {
                match self { $(Kernel::$name(op) => op.slots()),* }
            }

            /// Which rows of a pass it works on.
            pub fn row_set(self) -> Option<RowSet> {
                match self { $(Kernel::$name(op) => op.row_set()),* }
            }

            /// The byte offset in its output at which rows with unspecified contents begin.
            pub fn dead_rows(self, params: &[u8; PARAM_BYTES], live: usize) -> Option<u64> {
                match self { $(Kernel::$name(op) => op.dead_rows(&params_of(params), live)),* }
            }

            /// The inline parameters of a command of this kernel, as names and values.
            pub fn describe_params(self, params: &[u8; PARAM_BYTES]) -> Vec<(&'static str, String)> {
                match self { $(Kernel::$name(_) => params_of::<<$name as Op>::Params>(params).fields()),* }
            }

            /// How many bytes of each binding a command may access, in order.
            pub fn extents(self, params: &[u8; PARAM_BYTES], counts: &Counts) -> Result<Vec<Extent>, String> {
                let mut extents = Vec::with_capacity(crate::table::MAX_BINDINGS);
                match self {
                    $(Kernel::$name(op) => op.extents(&params_of(params), counts)?.put(op, &mut extents)),*
                }
                Ok(extents)
            }

            pub fn cost(self, params: &[u8; PARAM_BYTES], entries: Entries<'_>, logit_rows: usize) -> Cost {
                match (self, entries) {
                    $(
                        (Kernel::$name(op), Entries::Rows(rows)) => op.cost(&params_of(params), rows, logit_rows),
                        (Kernel::$name(op), Entries::Moves(moves)) => op.move_cost(&params_of(params), moves),
                    )*
                }
            }

            pub(crate) fn reference(self, bound: Bound<'_>) {
                match self { $(Kernel::$name(op) => op.reference(bound)),* }
            }
        }
    };
}

pub(super) use {access, field_type, kernels, operands, params, put, take};
