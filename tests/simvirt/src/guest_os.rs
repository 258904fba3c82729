//! The operating systems that a test can declare, as their guest agent reports them.

use serde_json::{Value, json};

use crate::value::text;

/// The annotation on a VM, its template or a VMI that names the guest: `windows-2022`, `linux`, ...
/// A guest named `none`, and one that is not named, has no agent.
pub const GUEST_ANNOTATION: &str = "simvirt.test/guest";

/// What the annotations declare, as `status.guestOSInfo`.
pub(crate) fn declared(vm: Option<&Value>, vmi: &Value) -> Option<Value> {
    let pointer = format!("/metadata/annotations/{}", GUEST_ANNOTATION.replace('/', "~1"));
    let name = text(vmi, &pointer).or_else(|| vm.and_then(|v| text(v, &pointer)))?;
    info(name)
}

/// The `guestOSInfo` of a named guest.
pub(crate) fn info(name: &str) -> Option<Value> {
    let (version, pretty, id, release) = match name {
        "windows-2012r2" => ("Microsoft Windows Server 2012 R2", "Windows Server 2012 R2 Standard", "2012r2", "9600"),
        "windows-2016" => ("Microsoft Windows Server 2016", "Windows Server 2016 Standard", "2016", "14393"),
        "windows-2019" => ("Microsoft Windows Server 2019", "Windows Server 2019 Standard", "2019", "17763"),
        "windows-2022" => ("Microsoft Windows Server 2022", "Windows Server 2022 Standard", "2022", "20348"),
        "windows-2025" => ("Microsoft Windows Server 2025", "Windows Server 2025 Standard", "2025", "26100"),
        "windows-10" => ("Microsoft Windows 10", "Windows 10 Pro", "10", "19045"),
        "windows-11" => ("Microsoft Windows 11", "Windows 11 Pro", "11", "22631"),
        "linux" => {
            return Some(json!({
                "id": "debian", "name": "Debian GNU/Linux", "prettyName": "Debian GNU/Linux 12 (bookworm)",
                "version": "12 (bookworm)", "versionId": "12", "kernelRelease": "6.1.0-18-amd64",
                "kernelVersion": "#1 SMP PREEMPT_DYNAMIC Debian 6.1.76-1", "machine": "x86_64",
            }));
        }
        _ => return None,
    };
    Some(json!({
        "id": "mswindows", "name": "Microsoft Windows", "prettyName": pretty, "version": version,
        "versionId": id, "kernelRelease": release,
        "kernelVersion": if release == "9600" { "6.3" } else { "10.0" }, "machine": "x86_64",
    }))
}
