//! The API server's audit log, read back.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// One request that the API server has answered, whoever sent it and whether it was allowed or not.
///
/// Texts are empty where a request has no such part: no namespace for a cluster-scoped object, no name for a list,
/// no resource for `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// `admin`, `system:serviceaccount:NAMESPACE:NAME`, or the API server's own `system:apiserver`.
    pub user: String,
    /// What the client calls itself.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, ...
    pub verb: String,
    /// Empty for the core group.
    pub api_group: String,
    /// Plural, such as `virtualmachines`.
    pub resource: String,
    /// Such as `status` or `token`.
    pub subresource: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Path and query.
    pub request_uri: String,
    /// HTTP status.
    pub code: u16,
}

impl AuditEvent {
    /// Whether the request asked for a dry run, which checks everything and stores nothing.
    pub fn is_dry_run(&self) -> bool {
        let query = self.request_uri.split_once('?').map_or("", |(_, query)| query);
        query.split('&').any(|pair| pair == "dryRun=All")
    }
}

/// The events of the log, in the order in which they were written. A last line that is still being written is
/// left out.
pub(crate) fn read(log: &Path) -> Result<Vec<AuditEvent>> {
    let text = match std::fs::read_to_string(log) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("read the audit log {}", log.display()));
        }
    };
    let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
    complete
        .lines()
        .enumerate()
        .map(|(index, line)| parse(line).with_context(|| format!("line {} of {}", index + 1, log.display())))
        .collect()
}

fn parse(line: &str) -> Result<AuditEvent> {
    let event: Event = serde_json::from_str(line).context("parse an audit event")?;
    let object = event.object_ref.unwrap_or_default();
    Ok(AuditEvent {
        user: event.user.username,
        user_agent: event.user_agent,
        verb: event.verb,
        api_group: object.api_group,
        resource: object.resource,
        subresource: object.subresource,
        namespace: object.namespace,
        name: object.name,
        request_uri: event.request_uri,
        code: event.response_status.code,
    })
}

/// The parts that we read of `audit.k8s.io/v1` Event.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    user: User,
    #[serde(default)]
    user_agent: String,
    verb: String,
    object_ref: Option<ObjectRef>,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    response_status: Status,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","requestURI":"/apis/kubevirt.io/v1/namespaces/erp/virtualmachines/db?dryRun=All&fieldManager=wintune","verb":"patch","user":{"username":"system:serviceaccount:wintune:wintune"},"userAgent":"wintune","objectRef":{"resource":"virtualmachines","namespace":"erp","name":"db","apiGroup":"kubevirt.io","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":200}}"#;

    #[test]
    fn an_event_is_read_and_an_unfinished_line_left_out() {
        let dir = tempfile::tempdir().expect("temp dir");
        let log = dir.path().join("audit.log");
        assert!(read(&log).expect("no log yet").is_empty());
        std::fs::write(&log, format!("{LINE}\n{}", &LINE[..40])).expect("write");
        let events = read(&log).expect("read");
        assert_eq!(events.len(), 1);
        let event = &events[0];
        assert_eq!((event.verb.as_str(), event.name.as_str(), event.code), ("patch", "db", 200));
        assert_eq!((event.subresource.as_str(), event.api_group.as_str()), ("", "kubevirt.io"));
        assert!(event.is_dry_run());
    }
}
