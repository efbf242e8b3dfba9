"""Azure's own Python SDK against the emulator: tokens, pages, operations, errors, throttling.

The emulator is plain HTTP on loopback. The SDK sends tokens over HTTP only when told so
(`enforce_https=False`), and its credentials of applications refuse an authority without TLS: the
token here is one of a managed identity, whose metadata endpoint is HTTP in Azure too.
"""

import datetime
import enum
import json
import os
import sys
import typing

from azure.core import AzureClouds, MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.identity import AzureAuthorityHosts, ManagedIdentityCredential
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.containerservice import ContainerServiceClient, models
from azure.mgmt.core.tools import get_arm_endpoints
from azure.mgmt.containerservice._utils.model_base import Model, SdkJSONEncoder
from azure.mgmt.network import NetworkManagementClient

FACTS = json.load(open(sys.argv[1]))
ENDPOINT, SUBSCRIPTION = FACTS["endpoint"], FACTS["subscription"]
POOL = (FACTS["group"], FACTS["cluster"], FACTS["pool"])
HTTP = {"enforce_https": False}


def client(kind, identity="judge", **options):
    os.environ["AZURE_POD_IDENTITY_AUTHORITY_HOST"] = ENDPOINT
    credential = ManagedIdentityCredential(client_id=identity)
    return kind(credential, SUBSCRIPTION, base_url=ENDPOINT, **options)


def refused(code, status, call):
    """The error of a call that must fail with this code and status."""
    try:
        call()
    except HttpResponseError as error:
        found = (error.error.code if error.error else None, error.status_code)
        assert found == (code, status), f"expected {(code, status)}, found {found}: {error}"
        return error
    raise AssertionError(f"expected {code}, but the call succeeded")


def sizes_and_usages():
    compute = client(ComputeManagementClient)
    pages = compute.resource_skus.list(filter="location eq 'eastus'", **HTTP).by_page()
    pages = [list(page) for page in pages]
    rows = {row.name: row for page in pages for row in page if row.resource_type == "virtualMachines"}
    assert len(pages) > 2 and len(rows) > 900, (len(pages), len(rows))
    facts = {fact.name: fact.value for fact in rows["Standard_D4s_v5"].capabilities}
    assert (facts["vCPUs"], facts["MemoryGB"], facts["CpuArchitectureType"]) == ("4", "16", "x64")
    assert rows["Standard_D4s_v5"].location_info[0].zones == ["1", "2", "3"]
    retired = rows["Standard_NC6s_v3"].restrictions[0]
    assert (retired.type, retired.reason_code) == ("Location", "NotAvailableForSubscription")
    usages = {usage.name.value: usage for usage in compute.usage.list("eastus", **HTTP)}
    assert usages["standardDSv5Family"].limit > 0
    assert usages["cores"].current_value == 0 and "lowPriorityCores" in usages


def subnets():
    network = client(NetworkManagementClient)
    group, vnet, subnet = FACTS["subnet"]
    assert network.subnets.get(group, vnet, subnet, **HTTP).name == subnet
    try:
        network.subnets.get(group, vnet, "missing", **HTTP)
    except ResourceNotFoundError:
        return
    raise AssertionError("a missing subnet was found")


def machine(zone, size="Standard_D4s_v5", **properties):
    properties = models.MachineProperties(
        hardware=models.MachineHardwareProfile(vm_size=size),
        operating_system=models.MachineOSProfile(os_sku="Ubuntu2404", os_disk_size_gb=128),
        kubernetes=models.MachineKubernetesProfile(node_labels={"team": "a"}, max_pods=30),
        **properties,
    )
    return models.Machine(zones=[zone], properties=properties)


def machines():
    aks = client(ContainerServiceClient)
    cluster = aks.managed_clusters.get(*POOL[:2], **HTTP)
    assert cluster.properties.provisioning_state == "Succeeded", cluster
    assert aks.agent_pools.get(*POOL, **HTTP).name == POOL[2]
    assert list(aks.machines.list(*POOL, **HTTP)) == []

    def put(name, body, **options):
        return aks.machines.begin_create_or_update(*POOL, name, body, **HTTP, **options)

    made = put("sdk-1", machine("1", tags={"a": "1"})).result()
    assert made.properties.provisioning_state == "Succeeded", made
    assert made.properties.node_image_version.startswith("AKSUbuntu-2404gen2containerd-")
    assert made.properties.resource_id.endswith("-vm"), made.properties.resource_id
    assert made.properties.status.creation_timestamp.year >= 2026
    assert made.properties.status.vm_state == "Running" and made.zones == ["1"]

    stale = made.properties.e_tag
    changed = machine("1", tags={"a": "2"})
    updated = put("sdk-1", changed, etag=stale, match_condition=MatchConditions.IfNotModified)
    assert updated.result().properties.tags == {"a": "2"}
    try:
        put("sdk-1", machine("1"), etag=stale, match_condition=MatchConditions.IfNotModified)
        raise AssertionError("a stale ETag was accepted")
    except ResourceModifiedError as error:
        assert error.status_code == 412

    # Refused at once, and accepted before it fails.
    refused("VMSizeNotSupported", 400, lambda: put("sdk-2", machine("1", "Standard_X9")))
    failing = put("sdk-3", machine("2"))
    refused("ZonalAllocationFailed", 200, failing.result)
    failed = aks.machines.get(*POOL, "sdk-3", **HTTP).properties
    assert failed.provisioning_state == "Failed"
    assert failed.status.provisioning_error.details[0].code == "ZonalAllocationFailed"

    batch = [{"machineName": f"sdk-{n}", "zones": ["1"], "tags": {"n": str(n)}} for n in (4, 5)]
    body = machine("1")
    body.zones = None
    header = {"BatchPutMachine": json.dumps({"batchMachines": batch})}
    put("sdk-4", body, headers=header).result()
    assert aks.machines.get(*POOL, "sdk-5", **HTTP).properties.tags == {"n": "5"}
    names = sorted(one.name for one in aks.machines.list(*POOL, **HTTP))
    assert names == ["sdk-1", "sdk-3", "sdk-4", "sdk-5"], names

    wanted = models.AgentPoolDeleteMachinesParameter(machine_names=names)
    aks.agent_pools.begin_delete_machines(*POOL, wanted, **HTTP).result()
    assert list(aks.machines.list(*POOL, **HTTP)) == []
    refused("NotFound", 404, lambda: aks.machines.get(*POOL, "sdk-1", **HTTP))

    old = client(ContainerServiceClient, api_version="2001-01-01")
    refused("NoRegisteredProviderFound", 400, lambda: old.managed_clusters.get(*POOL[:2], **HTTP))


def throttling():
    burst = client(ContainerServiceClient, identity="burst", retry_total=0)
    status = None
    for _ in range(400):
        try:
            burst.agent_pools.get(*POOL, **HTTP)
        except HttpResponseError as error:
            status, wait = error.status_code, error.response.headers["Retry-After"]
            break
    assert status == 429 and int(wait) >= 1, status
    # With its own retries the SDK waits as it is told, and gets through.
    patient = client(ContainerServiceClient, identity="burst")
    assert patient.agent_pools.get(*POOL, **HTTP).name == POOL[2]


def options_of(hint):
    """The types that a member may have."""
    options = typing.get_args(hint) if typing.get_origin(hint) is typing.Union else [hint]
    return [one for one in options if one is not type(None)]


def walk(model, path):
    """Fails for a member that the model does not have, or that has another type."""
    fields = {field._rest_name: name for name, field in model._attr_to_rest_field.items()}
    scope = {**vars(models), "_models": models, **vars(typing)}
    hints = typing.get_type_hints(type(model), scope)
    for key in model.keys():
        assert key in fields, f"{path}.{key} is unknown to {type(model).__name__}"
        value = getattr(model, fields[key])
        check(value, options_of(hints[fields[key]]), f"{path}.{key}")


def check(value, options, path):
    if value is None:
        return
    enums = [one for one in options if isinstance(one, type) and issubclass(one, enum.Enum)]
    if enums:
        assert value in [one.value for one in enums[0]], f"{path}: {value!r} is not allowed"
        return
    wanted = options[0]
    origin = typing.get_origin(wanted) or wanted
    assert type(value) is origin or isinstance(value, origin) and not isinstance(value, bool), (
        f"{path}: {value!r} is no {origin.__name__}"
    )
    if isinstance(value, Model):
        walk(value, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check(item, [typing.get_args(wanted)[0]], f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            check(item, [typing.get_args(wanted)[1]], f"{path}[{key}]")


def bodies():
    """What the provider sends goes through the SDK's models, and comes out again."""
    by_model = {}
    for sent in FACTS["bodies"]:
        by_model.setdefault(sent["model"], []).append(sent["body"])
    wanted = {"AgentPool", "AgentPoolDeleteMachinesParameter", "Machine"}
    assert set(by_model) == wanted, set(by_model)
    # Four kinds, one with every field of a class, and its tags changed.
    assert len(by_model["Machine"]) == 6, len(by_model["Machine"])
    for name, model in ((name, getattr(models, name)) for name in sorted(wanted)):
        for sent in by_model[name]:
            walk(model(sent), "")
            written = json.loads(
                json.dumps(model(sent), cls=SdkJSONEncoder, exclude_readonly=True)
            )
            # Read-only in the SDK; AKS takes it from node auto-provisioning all the same.
            expected = json.loads(json.dumps(sent))
            if name == "Machine":
                expected["properties"].pop("nodeImageVersion", None)
            assert written == expected, (written, expected)
    unknown = json.loads(json.dumps(by_model["Machine"][0]))
    for change in (("colour", "red"), ("mode", "Default"), ("priority", 7)):
        unknown["properties"].update([change])
        try:
            walk(models.Machine(unknown), "")
        except AssertionError:
            del unknown["properties"][change[0]]
            continue
        raise SystemExit(f"the judge did not notice {change}")


def kind(hint):
    """The type of a member as the emulator describes it."""
    options = options_of(hint)
    enums = [one for one in options if isinstance(one, type) and issubclass(one, enum.Enum)]
    if enums:
        return {"oneOf": [one.value for one in enums[0]]}
    wanted, inner = options[0], typing.get_args(options[0])
    simple = {str: "text", bool: "bool", int: "int", float: "number"}
    simple |= {datetime.date: "text", datetime.datetime: "text"}
    lists = {str: "texts", int: "ints"}
    if typing.get_origin(wanted) is list:
        return lists.get(inner[0]) or {"list": members_of(inner[0])}
    if typing.get_origin(wanted) is dict:
        return "textMap" if inner[1] is str else {"map": members_of(inner[1])}
    return simple.get(wanted) or {"object": members_of(wanted)}


def members_of(model):
    """The members of a model as the emulator describes them."""
    scope = {**vars(models), "_models": models, **vars(typing)}
    hints = typing.get_type_hints(model, scope)
    fields = model({})._attr_to_rest_field.items()
    return {
        field._rest_name: "readOnly" if field._visibility == ["read"] else kind(hints[name])
        for name, field in fields
    }


def differences(ours, theirs, path):
    """What differs between two descriptions, by path."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted({*ours, *theirs}):
            if name not in ours or name not in theirs:
                yield f"{path}.{name} is {'missing' if name not in ours else 'not published'}"
            else:
                yield from differences(ours[name], theirs[name], f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        if sorted(ours) != sorted(theirs):
            yield f"{path}: {ours} is not {theirs}"
    elif ours != theirs:
        yield f"{path}: {ours} is not {theirs}"


def definitions():
    """The emulator's lists of members are those of the SDK's models."""
    found = []
    for name, ours in FACTS["members"].items():
        found += differences(ours, members_of(getattr(models, name)), name)
    # Read-only in the SDK; AKS takes it from node auto-provisioning all the same.
    expected = ["Machine.properties.object.nodeImageVersion: text is not readOnly"]
    assert found == expected, "\n".join(found)


def clouds():
    """The endpoints of every cloud are those of the SDK."""
    hosts = {
        "AZURE_PUBLIC_CLOUD": AzureAuthorityHosts.AZURE_PUBLIC_CLOUD,
        "AZURE_US_GOVERNMENT": AzureAuthorityHosts.AZURE_GOVERNMENT,
        "AZURE_CHINA_CLOUD": AzureAuthorityHosts.AZURE_CHINA,
    }
    assert set(FACTS["clouds"]) == {one.value for one in AzureClouds}, FACTS["clouds"]
    for name, ours in FACTS["clouds"].items():
        theirs = get_arm_endpoints(AzureClouds(name))
        assert ours["arm"] == theirs["resource_manager"].rstrip("/"), (ours, theirs)
        assert ours["entra"] == f"https://{hosts[name]}", (ours, hosts[name])
        # SDKs name one of two hosts as the audience of ARM; this one another for the US Government.
        scopes = [one.replace("//management.core.", "//management.") for one in theirs["credential_scopes"]]
        assert scopes == [ours["scope"]], (ours, theirs)


for step in (clouds, sizes_and_usages, subnets, machines, throttling, bodies, definitions):
    step()
    print(f"ok: {step.__name__}", flush=True)
