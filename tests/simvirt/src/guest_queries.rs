//! guestosinfo, filesystemlist and userlist. Every failure is HTTP 500 in plain text, as virt-api answers.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use crate::answers::{Failure, json_answer, method_not_allowed, text_answer};
use crate::context::{Context, GuestMemory};
use crate::objects::{Key, VMI, message};
use crate::options::Handler;
use crate::subresources::phase;
use crate::value::{condition_true, list, text};

pub(crate) async fn vmi_subresource(
    State(context): State<Arc<Context>>,
    Path((namespace, name, sub)): Path<(String, String, String)>,
    method: Method,
) -> Response {
    if !["guestosinfo", "filesystemlist", "userlist"].contains(&sub.as_str()) {
        let text = format!("501: {sub} is not simulated");
        return text_answer(StatusCode::NOT_IMPLEMENTED, text);
    }
    if method != Method::GET {
        return method_not_allowed();
    }
    match answer(&context, &Key::new(&namespace, &name), &sub).await {
        Ok(value) => json_answer(StatusCode::OK, &value),
        Err(text) => text_answer(StatusCode::INTERNAL_SERVER_ERROR, text),
    }
}

async fn answer(context: &Context, key: &Key, sub: &str) -> Result<Value, String> {
    const KIND: &str = "virtualmachineinstance";
    let vmi = context.api.get(VMI, key).await.map_err(|e| message(&e))?;
    let Some(vmi) = vmi else {
        return Err(Failure::not_found(KIND, &key.name).message().to_owned());
    };
    let conflict = |why: &str| Failure::conflict(KIND, &key.name, why).message().to_owned();
    if phase(&vmi) != "Running" {
        return Err(conflict("VMI is not running"));
    }
    if !condition_true(&vmi, "AgentConnected") {
        return Err(conflict("VMI does not have guest agent connected"));
    }
    let guest = context.guest(key);
    match &guest.handler {
        Handler::Answers => {}
        Handler::Missing => {
            let node = text(&vmi, "/status/nodeName").unwrap_or_default();
            return Err(format!("No virt-handler on node {node} found"));
        }
        Handler::Refuses { address } => {
            return Err(format!(
                "Get \"https://{address}/v1/namespaces/{}/virtualmachineinstances/{}/{sub}\": dial tcp {address}: \
                 connect: connection refused",
                key.namespace, key.name
            ));
        }
    }
    Ok(match sub {
        "guestosinfo" => info(&vmi, &guest),
        "filesystemlist" => json!({"metadata": {}, "items": filesystems(&vmi, &guest)}),
        _ => json!({"metadata": {}, "items": users(&guest)}),
    })
}

fn info(vmi: &Value, guest: &GuestMemory) -> Value {
    json!({
        "guestAgentVersion": "108.0.2",
        "supportedCommands": [
            {"name": "guest-get-osinfo", "enabled": true},
            {"name": "guest-get-fsinfo", "enabled": true},
            {"name": "guest-exec", "enabled": true},
        ],
        "hostname": text(vmi, "/metadata/name"),
        "os": vmi.pointer("/status/guestOSInfo"),
        "timezone": "UTC, 0",
        "userList": users(guest),
        "fsInfo": {"disks": filesystems(vmi, guest)},
        "fsFreezeStatus": "thawed",
    })
}

fn users(guest: &GuestMemory) -> Value {
    guest.users.clone().unwrap_or(json!([]))
}

/// The bus is the one the guest sees: it proves that the guest has a driver for it.
fn filesystems(vmi: &Value, guest: &GuestMemory) -> Value {
    if let Some(items) = &guest.filesystems {
        return items.clone();
    }
    let Some(disk) = list(vmi, "/spec/domain/devices/disks").first() else {
        return json!([]);
    };
    let windows = text(vmi, "/status/guestOSInfo/id") == Some("mswindows");
    json!([{
        "diskName": if windows { "\\\\?\\Volume{11111111-1111-1111-1111-111111111111}\\" } else { "vda1" },
        "mountPoint": if windows { "C:\\" } else { "/" },
        "fileSystemType": if windows { "NTFS" } else { "ext4" },
        "usedBytes": 12_884_901_888_u64,
        "totalBytes": 64_424_509_440_u64,
        "disk": [{
            "serial": text(disk, "/serial").unwrap_or_default(),
            "busType": text(disk, "/disk/bus").unwrap_or("sata"),
        }],
    }])
}
