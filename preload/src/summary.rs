//! The summary at the end of the process, with `GPUMEM_STATS`.

use crate::served::{self, Served};
use crate::{counters, observers, settings};
use gpumem::driver::process;

/// Runs after the exit handlers of the process, when static objects are gone.
#[used]
#[link_section = ".fini_array"]
static AT_END: extern "C" fn() = end;

extern "C" fn end() {
    // A panic here would end a process that has ended well.
    let _ = std::panic::catch_unwind(|| {
        if process::forked() {
            return;
        }
        observers::leave(served::all().map(|s| (s.dev, &s.pool)));
        if counters::is_on() {
            settings::say(&counters::text(served::all().map(Served::peak_mapped).sum()));
        } else if std::env::var("GPUMEM_RUN").is_ok_and(|pid| pid == std::process::id().to_string())
            && settings::get().own.stats
        {
            let (pid, why) = (std::process::id(), counters::look_ups());
            settings::say(&format!("process {pid}: allocated nothing that gpumem could serve; {why}"));
        }
    });
}
