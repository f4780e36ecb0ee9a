// A binding of the C interface whose strings are a pointer and a size, as those of Rust are: an empty
// one may point anywhere, and one that is part of a longer text does not end with a NUL.
use std::os::raw::{c_char, c_void};
use std::ptr;

#[repr(C)]
struct Tensor {
    name: *const c_char,
    name_size: usize,
    shape: *const u64,
    rank: usize,
    data: *const c_void,
    nbytes: u64,
    begin: u64,
    dtype: i32,
    file: u32,
}

#[repr(C)]
struct Item {
    key: *const c_char,
    key_size: usize,
    value: *const c_char,
    value_size: usize,
}

#[repr(C)]
struct SaveOptions {
    size: usize,
    metadata: *const Item,
    metadata_count: usize,
    watch: *const c_void,
    flags: u32,
    reserved: u32,
}

enum Error {}

enum File {}

extern "C" {
    fn safetensors_serialize(
        tensors: *const Tensor, count: usize, options: *const SaveOptions, to: *mut c_void,
        room: usize, nbytes: *mut u64, error: *mut Error,
    ) -> i32;
    fn safetensors_open_memory(
        bytes: *const c_void, nbytes: usize, file: *mut *mut File, error: *mut Error,
    ) -> i32;
    fn safetensors_find(
        file: *const File, name: *const c_char, size: usize, tensor: *mut Tensor, error: *mut Error,
    ) -> i32;
    fn safetensors_metadata_value(
        file: *const File, number: u32, key: *const c_char, size: usize, value_size: *mut usize,
    ) -> *const c_char;
    fn safetensors_close(file: *mut File);
}

const U8: i32 = 17;
const TENSOR_NOT_FOUND: i32 = 12;

fn item(key: &str, value: &str) -> Item {
    Item {
        key: key.as_ptr() as _,
        key_size: key.len(),
        value: value.as_ptr() as _,
        value_size: value.len(),
    }
}

fn tensor(name: &str) -> Tensor {
    Tensor {
        name: name.as_ptr() as _,
        name_size: name.len(),
        shape: ptr::null(),
        rank: 0,
        data: b"x".as_ptr() as _,
        nbytes: 1,
        begin: 0,
        dtype: U8,
        file: 0,
    }
}

fn serialize(tensors: &[Tensor], metadata: &[Item]) -> Vec<u8> {
    let mut bytes = vec![0u8; 1000];
    let mut nbytes = 0;
    let options = SaveOptions {
        size: std::mem::size_of::<SaveOptions>(),
        metadata: metadata.as_ptr(),
        metadata_count: metadata.len(),
        watch: ptr::null(),
        flags: 0,
        reserved: 0,
    };
    let code = unsafe {
        safetensors_serialize(
            tensors.as_ptr(), tensors.len(), &options, bytes.as_mut_ptr() as _, bytes.len(),
            &mut nbytes, ptr::null_mut(),
        )
    };
    assert_eq!(code, 0, "serialize");
    bytes.truncate(nbytes as usize);
    bytes
}

fn find(file: *const File, name: &str) -> i32 {
    let mut found = tensor("");
    let name_ptr = name.as_ptr() as _;
    unsafe { safetensors_find(file, name_ptr, name.len(), &mut found, ptr::null_mut()) }
}

fn value(file: *const File, key: &str) -> Option<String> {
    let mut size = 0;
    let found =
        unsafe { safetensors_metadata_value(file, 0, key.as_ptr() as _, key.len(), &mut size) };
    if found.is_null() {
        return None;
    }
    let bytes = unsafe { std::slice::from_raw_parts(found as *const u8, size) };
    Some(String::from_utf8(bytes.to_vec()).unwrap())
}

/// Uses `empty` wherever the interface takes a string.
fn check(empty: &str) {
    let bytes = serialize(
        &[tensor(empty), tensor("b")],
        &[item("note", empty), item(empty, "of the empty key"), item("nul", "a\0b")],
    );
    let mut file = ptr::null_mut();
    let data = bytes.as_ptr() as _;
    let code = unsafe { safetensors_open_memory(data, bytes.len(), &mut file, ptr::null_mut()) };
    assert_eq!(code, 0, "open_memory");
    assert_eq!(find(file, empty), 0);
    assert_eq!(find(file, &"bc"[..1]), 0);
    assert_eq!(find(file, "bc"), TENSOR_NOT_FOUND);
    assert_eq!(value(file, &"notes"[..4]).as_deref(), Some(""));
    assert_eq!(value(file, empty).as_deref(), Some("of the empty key"));
    assert_eq!(value(file, "nul").as_deref(), Some("a\0b"));
    assert_eq!(value(file, "no"), None);
    assert!(!String::from_utf8_lossy(&bytes).contains("secret"));
    unsafe { safetensors_close(file) };
}

fn main() {
    let text = String::from("note:secret");
    check(&String::new()); // a pointer to nothing
    check(&text[5..5]); // what follows is not part of it
    check("");
    println!("consumer: strings of Rust work");
}
