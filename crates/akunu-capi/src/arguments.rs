//! What comes from C and what goes back: every pointer is read and written here.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::{ptr, slice};

use crate::boundary::{Failure, Status};

/// The length of a text that ends with a null character, wherever that is.
pub const AKUNU_TO_NULL: usize = usize::MAX;

/// No struct of this interface will ever be larger: a `size` beyond was never set.
const LARGEST: usize = 4096;

/// A plain struct that says its own size first, so that it may grow.
///
/// # Safety
/// `repr(C)`, its first field a `u32`, no padding, and any bits are a value of it.
pub(crate) unsafe trait Plain: Copy {
    const NAME: &'static str;
    /// The size that it had at first.
    const FIRST: usize;
}

/// Reads the `size` that a struct begins with, and checks it.
///
/// # Safety
/// `pointer` is null or points at 4 bytes.
unsafe fn struct_size<T: Plain>(pointer: *const T) -> Result<usize, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("the {} is null", T::NAME)));
    }
    // SAFETY: the caller's word; a u32 stands first in every such struct.
    let size = unsafe { pointer.cast::<u32>().read_unaligned() } as usize;
    if (T::FIRST..=LARGEST).contains(&size) {
        return Ok(size);
    }
    let message = format!(
        "the {name} says that it has {size} bytes, and it has {}: set its `size` to sizeof({name})",
        size_of::<T>(),
        name = T::NAME
    );
    Err(Failure::new(Status::StructSize, message))
}

/// Refuses a struct whose size is wrong, before anything is done.
///
/// # Safety
/// As with [`struct_size`].
pub(crate) unsafe fn check_struct<T: Plain>(pointer: *const T) -> Result<(), Failure> {
    // SAFETY: the caller's word.
    unsafe { struct_size(pointer) }.map(|_| ())
}

/// A struct as the caller has it, which may be older and shorter (what it lacks is 0), or newer and longer (what this library
/// does not know has to be 0).
///
/// # Safety
/// `pointer` is null or points at as many bytes as it says.
pub(crate) unsafe fn read_struct<T: Plain>(pointer: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's word.
    let size = unsafe { struct_size(pointer) }?;
    let mut value = MaybeUninit::<T>::zeroed();
    let known = size.min(size_of::<T>());
    // SAFETY: both have `known` bytes, and one is new.
    unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known) };
    // SAFETY: `known` is at most `size`.
    let rest = unsafe { slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|&byte| byte != 0) {
        let message = format!("the {} sets fields that this library does not know: it is too old", T::NAME);
        return Err(Failure::new(Status::StructSize, message));
    }
    // SAFETY: any bits are a value, and all bytes were set.
    Ok(unsafe { value.assume_init() })
}

/// As [`read_struct`], but that null means all zeros.
///
/// # Safety
/// As there.
pub(crate) unsafe fn read_options<T: Plain>(pointer: *const T) -> Result<T, Failure> {
    if pointer.is_null() {
        // SAFETY: any bits are a value.
        return Ok(unsafe { MaybeUninit::zeroed().assume_init() });
    }
    // SAFETY: the caller's word.
    unsafe { read_struct(pointer) }
}

/// Fills the caller's struct as far as it goes, but for its `size`.
///
/// # Safety
/// `pointer` is null or points at as many bytes as it says.
pub(crate) unsafe fn write_struct<T: Plain>(pointer: *mut T, value: &T) -> Result<(), Failure> {
    const HEAD: usize = size_of::<u32>();
    // SAFETY: the caller's word.
    let size = unsafe { struct_size(pointer) }?;
    let known = size.min(size_of::<T>());
    let from = ptr::from_ref(value).cast::<u8>();
    let to = pointer.cast::<u8>();
    // SAFETY: both have at least `known` bytes, and no padding among them.
    unsafe { ptr::copy_nonoverlapping(from.add(HEAD), to.add(HEAD), known - HEAD) };
    // SAFETY: the caller's has `size` bytes.
    unsafe { ptr::write_bytes(to.add(known), 0, size - known) };
    Ok(())
}

/// Writes one value to where the caller wants it.
///
/// # Safety
/// `to` is null or points at room for a `T`.
pub(crate) unsafe fn write<T>(to: *mut T, value: T, name: &str) -> Result<(), Failure> {
    check_pointer(to, name)?;
    // SAFETY: not null, aligned, and the caller's word for the rest.
    unsafe { to.write(value) };
    Ok(())
}

/// As [`write`], but that null means that nobody wants it.
///
/// # Safety
/// As there.
pub(crate) unsafe fn write_wanted<T>(to: *mut T, value: T, name: &str) -> Result<(), Failure> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's word.
    unsafe { write(to, value, name) }
}

/// Null or crooked pointers are told apart from good ones before anything is done.
pub(crate) fn check_pointer<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is null")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(format!("{name} is not aligned to {} bytes", align_of::<T>())));
    }
    Ok(())
}

/// # Safety
/// `items` is null or points at `count` items, which nobody changes during the call.
pub(crate) unsafe fn items<'a, T>(items: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check_pointer(items, name)?;
    check_count::<T>(count, name)?;
    // SAFETY: not null, aligned, no longer than memory can be; the caller's word for the rest.
    Ok(unsafe { slice::from_raw_parts(items, count) })
}

fn check_count<T>(count: usize, name: &str) -> Result<(), Failure> {
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::argument(format!("the count of {name}, {count}, is more than memory can hold")));
    }
    Ok(())
}

/// A text of `length` bytes, or up to its null character ([`AKUNU_TO_NULL`]).
///
/// # Safety
/// `text` is null or points at as much, which nobody changes during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char, length: usize, name: &str) -> Result<&'a str, Failure> {
    let bytes = match length {
        AKUNU_TO_NULL => {
            check_pointer(text, name)?;
            // SAFETY: not null, and the caller's word that it ends.
            unsafe { CStr::from_ptr(text) }.to_bytes()
        }
        // SAFETY: the caller's word.
        _ => unsafe { items(text.cast::<u8>(), length, name) }?,
    };
    str::from_utf8(bytes).map_err(|error| {
        Failure::argument(format!("{name} is not UTF-8: byte {} is wrong", error.valid_up_to()))
    })
}

/// As [`text`] up to its null character; `None` where it is null.
///
/// # Safety
/// As there.
pub(crate) unsafe fn wanted_text<'a>(pointer: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's word.
    unsafe { text(pointer, AKUNU_TO_NULL, name) }.map(Some)
}

/// Where a result of unknown length goes: a buffer, its capacity, and where to tell the length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room<T> {
    pub(crate) buffer: *mut T,
    pub(crate) capacity: usize,
    pub(crate) length: *mut usize,
}

impl<T: Copy> Room<T> {
    /// Looks at the pointers before anything is done that could not be undone. True: only the length is asked for.
    pub(crate) fn check(&self) -> Result<bool, Failure> {
        if !self.length.is_null() {
            check_pointer(self.length, "the length")?;
        }
        if self.buffer.is_null() && self.capacity == 0 {
            check_pointer(self.length, "the length, which alone is asked for,")?;
            return Ok(true);
        }
        check_pointer(self.buffer, "the buffer")?;
        check_count::<T>(self.capacity, "the buffer's items")?;
        Ok(false)
    }

    /// Tells the length, and fills the buffer if there is one.
    ///
    /// # Safety
    /// The buffer has the capacity, and the length is null or has room for one.
    pub(crate) unsafe fn fill(self, items: &[T]) -> Result<(), Failure> {
        // SAFETY: the caller's word.
        unsafe { self.fill_with(items, None) }
    }

    /// Tells that a result would have so many items, before it is computed: what [`Room::fill`] does where only the length
    /// is asked for, or where the buffer is too small.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn fill_nothing(self, needed: usize) -> Result<(), Failure> {
        let only_length = self.check()?;
        // SAFETY: checked, and null or room for one.
        unsafe { write_wanted(self.length, needed, "the length") }?;
        if only_length {
            return Ok(());
        }
        Err(too_small(needed, self.capacity))
    }

    /// As [`Room::fill`], with an item behind the others that does not count, for which there has to be room.
    ///
    /// # Safety
    /// As there.
    unsafe fn fill_with(self, items: &[T], end: Option<T>) -> Result<(), Failure> {
        let only_length = self.check()?;
        // SAFETY: checked, and the caller's word.
        unsafe { write_wanted(self.length, items.len(), "the length") }?;
        if only_length {
            return Ok(());
        }
        let needed = items.len() + usize::from(end.is_some());
        if needed > self.capacity {
            return Err(too_small(needed, self.capacity));
        }
        // SAFETY: the buffer has room for all, and is the caller's own.
        unsafe { ptr::copy_nonoverlapping(items.as_ptr(), self.buffer, items.len()) };
        if let Some(end) = end {
            // SAFETY: `needed` counts it.
            unsafe { self.buffer.add(items.len()).write(end) };
        }
        Ok(())
    }
}

fn too_small(needed: usize, capacity: usize) -> Failure {
    let message = format!("the result needs a buffer of {needed} and this one has {capacity}");
    Failure::new(Status::BufferTooSmall, message)
}

impl Room<c_char> {
    /// A text, with a null character behind it that the length does not count.
    ///
    /// # Safety
    /// As with [`Room::fill`].
    pub(crate) unsafe fn fill_text(self, text: &[u8]) -> Result<(), Failure> {
        let room = Room { buffer: self.buffer.cast::<u8>(), capacity: self.capacity, length: self.length };
        // SAFETY: the caller's word; bytes are bytes.
        unsafe { room.fill_with(text, Some(0)) }
    }
}
