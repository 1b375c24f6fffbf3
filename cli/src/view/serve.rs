//! The page over HTTP, to this machine only.

use crate::report;
use std::sync::Arc;
use std::thread;
use tiny_http::{Header, Method, Request, Response, Server};

/// Serves one page until Ctrl-C.
pub fn run(port: u16, html: String) -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::http(("127.0.0.1", port)).map_err(|e| format!("port {port} cannot be served: {e}"))?;
    report::line(format_args!("http://{}/ until Ctrl-C", server.server_addr()))?;
    // Nothing need be saved, and a browser that does not read must not hold this up.
    ctrlc::set_handler(|| std::process::exit(0))?;
    let html: Arc<str> = html.into();
    for request in server.incoming_requests() {
        let html = html.clone();
        thread::spawn(move || answer(request, &html));
    }
    Ok(())
}

fn answer(request: Request, html: &str) {
    // Nothing but the head is sent in answer to HEAD.
    let known = matches!(request.method(), Method::Get | Method::Head) && request.url() == "/";
    let (text, status) = if known { (html, 200) } else { ("there is only /", 404) };
    let kind = if known { "text/html; charset=utf-8" } else { "text/plain" };
    let mut response = Response::from_string(text).with_status_code(status);
    if let Ok(header) = Header::from_bytes("Content-Type", kind) {
        response.add_header(header);
    }
    // A browser that went away is no error.
    let _ = request.respond(response);
}
