//! Balloon and network queues.

use serde_json::{Value, json};

use super::context::{Ask, Context};
use super::json;
use super::settings::Setting;
use crate::api::overrides::Switch;

/// Plans the memory balloon and the queues of virtio network interfaces.
pub(super) fn plan(cx: &Context<'_>) -> Vec<Setting> {
    let mut settings = Vec::new();
    let balloon = cx.desired.pick(|o| o.devices.mem_balloon);
    let on = match balloon.value {
        Some(Switch::Off) => Some(false),
        Some(Switch::On) if balloon.overridden => Some(true),
        _ => None,
    };
    if let Some(on) = on {
        settings.push(cx.setting(Ask {
            place: "/devices/autoattachMemBalloon".to_owned(),
            desired: json!(on),
            setting: "devices.memBalloon",
            overridden: balloon.overridden,
        }));
    }
    let queues = cx.desired.pick(|o| o.devices.network_multiqueue);
    let on = match queues.value {
        // One queue is what a single vCPU has anyway.
        Some(Switch::On) if queues.overridden || (has_virtio_nic(cx) && cx.vcpus.is_some_and(|n| n > 1)) => Some(true),
        Some(Switch::Off) if queues.overridden => Some(false),
        _ => None,
    };
    if let Some(on) = on {
        settings.push(cx.setting(Ask {
            place: "/devices/networkInterfaceMultiqueue".to_owned(),
            desired: json!(on),
            setting: "devices.networkMultiqueue",
            overridden: queues.overridden,
        }));
    }
    settings
}

/// Whether an interface is virtio: by its own model, its preference's, or KubeVirt's default for one that names none.
fn has_virtio_nic(cx: &Context<'_>) -> bool {
    let preferred = cx.facts.preference.read().and_then(|p| p.interface_model.as_deref());
    json::list(cx.domain, "/devices/interfaces").iter().any(|nic| {
        let passed_through = json::at(nic, "/sriov").is_some();
        let model = json::at(nic, "/model").and_then(Value::as_str).filter(|m| !m.is_empty());
        !passed_through && model.or(preferred).is_none_or(|m| m == "virtio")
    })
}
