//! Finds a function of the C library in its symbol table. Asking `dlsym` for `dlsym` would give
//! this library's own. No allocation, no thread-local data: this runs inside the first `dlsym` of
//! the process.

use libc::{c_int, c_void, dl_phdr_info, Elf64_Phdr, Elf64_Sym};

const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
/// In a version number: not the default version of the name.
const HIDDEN: u16 = 0x8000;

/// The name to find, and its address.
struct Search {
    /// With its terminating zero.
    name: &'static [u8],
    found: usize,
}

/// The C library's `name` (zero-terminated); 0 when it has none.
pub fn libc_function(name: &'static [u8]) -> usize {
    let mut search = Search { name, found: 0 };
    // SAFETY: the callback has the right type and is given the search, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

unsafe extern "C" fn visit(info: *mut dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description, and `data` is the search of the call above.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
    // SAFETY: the loader's own C string, or null.
    if !unsafe { is_libc(info.dlpi_name) } {
        return 0;
    }
    // SAFETY: the description is the loader's.
    search.found = unsafe { in_object(info, search.name) };
    c_int::from(search.found != 0)
}

/// Whether a path ends in `libc.so.6`, or `libdl.so.2`, where older ones keep these functions.
unsafe fn is_libc(path: *const libc::c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: not null, so a C string.
    let path = unsafe { std::ffi::CStr::from_ptr(path) }.to_bytes();
    path.ends_with(b"/libc.so.6") || path.ends_with(b"/libdl.so.2")
}

/// The address of an exported default name in a loaded object.
unsafe fn in_object(info: &dl_phdr_info, name: &[u8]) -> usize {
    let base = info.dlpi_addr as usize;
    // SAFETY: the loader gives that many program headers.
    let headers: &[Elf64_Phdr] = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    let Some(dynamic) = headers.iter().find(|h| h.p_type == PT_DYNAMIC) else { return 0 };
    let (mut symbols, mut strings, mut hash, mut versions) = (0usize, 0usize, 0usize, 0usize);
    let mut entry = (base + dynamic.p_vaddr as usize) as *const [u64; 2];
    loop {
        // SAFETY: the dynamic section is mapped and ends with an entry of tag 0.
        let [tag, value] = unsafe { entry.read() };
        // glibc has relocated these to addresses.
        match tag {
            0 => break,
            DT_STRTAB => strings = value as usize,
            DT_SYMTAB => symbols = value as usize,
            DT_GNU_HASH => hash = value as usize,
            DT_VERSYM => versions = value as usize,
            _ => {}
        }
        // SAFETY: not the last entry.
        entry = unsafe { entry.add(1) };
    }
    if symbols == 0 || strings == 0 || hash == 0 {
        return 0;
    }
    // SAFETY: the table begins with four words: buckets, first symbol, words of the filter, its
    // shift.
    let [buckets, first, filter, _] = unsafe { (hash as *const [u32; 4]).read() };
    let bucket = hash + 16 + filter as usize * 8;
    let chain = bucket + buckets as usize * 4;
    let wanted = gnu_hash(name);
    // SAFETY: as many buckets as the table says, which is not 0 in a library that exports anything.
    let mut index = unsafe { *((bucket + (wanted % buckets.max(1)) as usize * 4) as *const u32) };
    while index >= first {
        // SAFETY: a chain ends with a word whose lowest bit is set; symbols and versions have the
        // same indices.
        unsafe {
            let word = *((chain + (index - first) as usize * 4) as *const u32);
            let symbol = &*(symbols as *const Elf64_Sym).add(index as usize);
            let version = if versions == 0 { 0 } else { *(versions as *const u16).add(index as usize) };
            let found = (strings + symbol.st_name as usize) as *const u8;
            if word | 1 == wanted | 1 && version & HIDDEN == 0 && symbol.st_shndx != 0 && equal(found, name) {
                return base + symbol.st_value as usize;
            }
            if word & 1 != 0 {
                return 0;
            }
        }
        index += 1;
    }
    0
}

/// Whether the C string at `text` is `name`, which has its zero.
unsafe fn equal(text: *const u8, name: &[u8]) -> bool {
    // SAFETY: it compares up to the first difference, at the latest at the zero of the text.
    name.iter().enumerate().all(|(i, c)| unsafe { *text.add(i) } == *c)
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().take_while(|c| **c != 0).fold(5381u32, |h, c| h.wrapping_mul(33).wrapping_add(u32::from(*c)))
}
