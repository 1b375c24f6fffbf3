//! What programs that are already linked depend on: exported symbols, the names in the ELF header,
//! the layout of structures. Compared with `abi/`; `GPUMEM_BLESS=1 cargo test --test capi abi`
//! rewrites it after a deliberate change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::cc;

use gpumem::capi::alloc::malloc_with::{gpumem_malloc_options, gpumem_pointer_info};
use gpumem::capi::arena::check::gpumem_arena_debug_stats;
use gpumem::capi::arena::scope::{gpumem_arena_report, gpumem_arena_stats};
use gpumem::capi::capture::sim_graph::gpumem_sim_graph_info;
use gpumem::capi::device::devices::gpumem_device_props;
use gpumem::capi::device::stream_pool::gpumem_stream_pool_stats;
use gpumem::capi::observe::record::{gpumem_allocation, gpumem_event, gpumem_visit_filter};
use gpumem::capi::observe::stats::{gpumem_driver_call, gpumem_stats};
use gpumem::capi::plan::buffers::{gpumem_plan_buffer_options, gpumem_plan_interval, gpumem_plan_options};
use gpumem::capi::plan::solve::{gpumem_plan_solve_options, gpumem_plan_stats};
use gpumem::capi::settings::context_options::gpumem_context_options;
use gpumem::capi::tiers::evict::{gpumem_location, gpumem_move_options, gpumem_move_report};
use gpumem::capi::tiers::host::gpumem_host_stats;
use gpumem::capi::tiers::policy::{gpumem_overdraw, gpumem_reserve_policy, gpumem_shortage};
use gpumem::capi::tiers::reserve::{gpumem_reservation_info, gpumem_reserve_options};
use gpumem::capi::tiers::space::{gpumem_space, gpumem_space_stats};
use object::elf::{DF_1_NODELETE, DT_FLAGS_1, DT_SONAME};
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::mem::{align_of, offset_of, size_of};

fn golden(name: &str, now: &str) -> Option<String> {
    let path = cc::root().join("abi").join(name);
    if std::env::var_os("GPUMEM_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, now).unwrap();
        return None;
    }
    Some(std::fs::read_to_string(&path).unwrap_or_default())
}

/// Fails unless the exported symbols are the golden ones. Removing one breaks programs; adding one
/// is blessed.
fn compare_symbols(golden: &str, now: &BTreeSet<String>) {
    let golden: BTreeSet<String> = golden.lines().map(str::to_owned).collect();
    let removed: Vec<_> = golden.difference(now).collect();
    let added: Vec<_> = now.difference(&golden).collect();
    assert!(
        removed.is_empty(),
        "no longer exported: {removed:?}. Programs linked against them will not start; put them back, or raise the \
         soname in build.rs, mk/install.mk and here, and bless"
    );
    assert!(
        added.is_empty(),
        "exported and not in abi/symbols.txt: {added:?}. If they belong to the ABI, run `GPUMEM_BLESS=1 cargo test \
         --test capi abi` and commit abi/"
    );
}

fn exported() -> BTreeSet<String> {
    let bytes = std::fs::read(cc::cdylib()).unwrap();
    let elf = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
    elf.dynamic_symbols().filter(|s| s.is_definition()).map(|s| s.name().unwrap().to_owned()).collect()
}

#[test]
fn the_library_exports_the_golden_symbols_and_nothing_else() {
    let now = exported();
    for name in &now {
        assert!(name.starts_with("gpumem_"), "{name} is exported without the prefix");
    }
    let text: String = now.iter().flat_map(|s| [s.as_str(), "\n"]).collect();
    if let Some(golden) = golden("symbols.txt", &text) {
        compare_symbols(&golden, &now);
    }
}

/// The comparison can fail: each symbol in turn is missing from the library, then from the list.
#[test]
fn a_symbol_more_or_less_is_noticed() {
    let now = exported();
    let text = |names: &BTreeSet<String>| names.iter().fold(String::new(), |text, name| text + name + "\n");
    compare_symbols(&text(&now), &now);
    for name in &now {
        let mut fewer = now.clone();
        fewer.remove(name);
        let (all, fewer_text) = (text(&now), text(&fewer));
        let panics = |f: &(dyn Fn() + std::panic::RefUnwindSafe)| std::panic::catch_unwind(f).is_err();
        assert!(panics(&|| compare_symbols(&all, &fewer)), "{name} removed");
        assert!(panics(&|| compare_symbols(&fewer_text, &now)), "{name} added");
    }
}

#[test]
fn the_library_has_its_soname_and_stays_loaded() {
    let bytes = std::fs::read(cc::cdylib()).unwrap();
    let header = object::elf::FileHeader64::<Endianness>::parse(&*bytes).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, &*bytes).unwrap();
    let (entries, strings) = sections.dynamic(endian, &*bytes).unwrap().unwrap();
    let strings = sections.strings(endian, &*bytes, strings).unwrap();
    let value = |tag: u32| entries.iter().find(|d| d.tag32(endian) == Some(tag)).map(|d| d.d_val(endian));
    let soname = strings.get(u32::try_from(value(DT_SONAME).unwrap()).unwrap()).unwrap();
    assert_eq!(std::str::from_utf8(soname).unwrap(), "libgpumem.so.0");
    assert_ne!(value(DT_FLAGS_1).unwrap() & u64::from(DF_1_NODELETE), 0, "built without -z nodelete");
}

/// Size, alignment and offsets of a structure, a line each.
macro_rules! layout {
    ($out:ident, $($name:ident { $($field:ident)* })*) => {$(
        writeln!($out, "{} size {} align {}", stringify!($name), size_of::<$name>(), align_of::<$name>()).unwrap();
        $(writeln!($out, "    {} at {}", stringify!($field), offset_of!($name, $field)).unwrap();)*
        // A pattern without `..`: a field that is missing above does not compile.
        let _ = |s: &$name| { let $name { $($field: _),* } = s; };
    )*};
}

#[test]
fn structures_have_their_golden_layout() {
    let mut now = String::new();
    layout! { now,
        gpumem_arena_debug_stats { size mode remembered stale_uses stale_writes kept kept_bytes unchecked }
        gpumem_context_options {
            size backend reuse log pool prealloc_percent prealloc_bytes va_size page_size limit_bytes trim_threshold
            host_bytes host_seed host_devices limit_percent trim_interval_ms stream_check arena_debug arena_quarantine
            capture_detection tiers mover pinned_limit_percent pinned_limit_bytes pinned_block_bytes pinned_blocks pinned_chunks disk
            downgrade_trigger downgrade_stop host_mode slack record snapshot record_stacks snapshot_on snapshot_events stats_page
            nvtx reserved
        }
        gpumem_device_props { size vmm posix_fd rdma compute_major compute_minor total_bytes granularity name }
        gpumem_malloc_options { size flags bytes alignment stream tag arena device reserved reservation }
        gpumem_pointer_info { size flags base requested usable stream id tag device reserved }
        gpumem_stats {
            size device reserved mapped peak_mapped requested live peak_live free waiting stock holes zombies
            largest_without_growth largest_free allocations mallocs frees extents moved stitches growths streams
            double_frees unknown_pointers late_frees out_of_memory limit
        }
        gpumem_driver_call { name calls }
        gpumem_allocation { size device base requested usable stream id tag arena flags reserved age_ns stack }
        gpumem_visit_filter { size on_device least_bytes tag arena device age_and_stack }
        gpumem_event { size kind time address bytes other stream tag arena device }
        gpumem_sim_graph_info { size reserved nodes memory_nodes }
        gpumem_arena_report {
            size depth freed freed_bytes kept kept_bytes unknown duplicate foreign nanoseconds
        }
        gpumem_arena_stats {
            size depth live live_bytes peak_bytes joined left promoted freed_early threads nanoseconds id name
        }
        gpumem_stream_pool_stats { size device made idle borrowed waiters }
        gpumem_space { tier id }
        gpumem_space_stats {
            size space should_downgrade should_stop reserved capacity limit promised unreserved used peak available
            beyond trigger stop amount_to_downgrade reservations waiters
        }
        gpumem_overdraw { size attempt space number promised drawn bytes stream }
        gpumem_shortage { size attempt space bytes stream }
        gpumem_reserve_policy { size kind factor cap flags reserved callback user free_user }
        gpumem_reserve_options {
            size strategy bytes least_bytes space tiers timeout_ms cancel policy out_of_memory user free_user
        }
        gpumem_reservation_info {
            size space reserved number promised drawn used peak arrived granted
        }
        gpumem_move_options { size flags space stream progress user }
        gpumem_move_report { size reserved moved moved_bytes already }
        gpumem_location { size space holds bytes device_bytes }
        gpumem_host_stats {
            size node block_bytes pinned peak blocks shared parts free longest chunks pins refused
        }
        gpumem_plan_options { size flags capacity unit alignment }
        gpumem_plan_interval { lower upper }
        gpumem_plan_buffer_options {
            size flags kind place bytes lower upper alignment guard offset arena reserved gaps gap_count name
        }
        gpumem_plan_solve_options { size effort time_limit_ms threads flags }
        gpumem_plan_stats {
            size status arena_bytes lower_bound total_unshared saved gap seconds critical_step steps slots values
            operations arenas interrupted
        }
    }
    if let Some(golden) = golden("structs.txt", &now) {
        assert_eq!(
            now, golden,
            "a structure's layout changed. Fields may be added at the end of one that begins with its size; then run \
             `GPUMEM_BLESS=1 cargo test --test capi abi` and commit abi/"
        );
    }
}
