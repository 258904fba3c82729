//! Timestamps as Kubernetes writes them.

use k8s_openapi::jiff::Timestamp;

/// Now, in RFC 3339 with whole seconds.
pub(crate) fn now() -> String {
    let seconds = Timestamp::now().as_second();
    Timestamp::from_second(seconds).map_or_else(|_| String::new(), |t| t.to_string())
}
