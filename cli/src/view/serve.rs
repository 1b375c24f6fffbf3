//! The page over HTTP, to this machine only.

use crate::report;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;
use tiny_http::{Header, Method, Response, Server};

/// Serves one page until Ctrl-C.
pub fn run(port: u16, html: String) -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::http(("127.0.0.1", port)).map_err(|e| format!("port {port} cannot be served: {e}"))?;
    report::line(format_args!("http://{}/ until Ctrl-C", server.server_addr()))?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    ctrlc::set_handler(move || stopped.store(true, Relaxed))?;
    let html: Arc<str> = html.into();
    while !stop.load(Relaxed) {
        let Some(request) = server.recv_timeout(Duration::from_millis(100))? else { continue };
        let known = *request.method() == Method::Get && request.url() == "/";
        let (text, status) = if known { (html.to_string(), 200) } else { ("there is only /".to_string(), 404) };
        let kind = if known { "text/html; charset=utf-8" } else { "text/plain" };
        let mut response = Response::from_string(text).with_status_code(status);
        if let Ok(header) = Header::from_bytes("Content-Type", kind) {
            response.add_header(header);
        }
        // A browser that went away is no error.
        let _ = request.respond(response);
    }
    Ok(())
}
