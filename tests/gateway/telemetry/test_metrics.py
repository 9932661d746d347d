"""The gateway's metrics."""

import asyncio

from gateway.telemetry.metrics import Metrics
from naru.environment import Bind
from naru.metrics_server import MetricsServer


class TestMetrics:
    async def scraped(self, metrics: Metrics) -> str:
        bound = MetricsServer(Bind("127.0.0.1", 0), metrics.registry).bind
        reader, writer = await asyncio.open_connection(bound.host, bound.port)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(5):
            text = (await reader.read()).decode()
        writer.close()
        return text

    async def test_they_are_served_on_a_bind_of_their_own(self):
        metrics = Metrics(lambda: 3)
        for _ in range(2):
            metrics.request("tools/call", "legacy", "json", "ok", 0.004)
        metrics.rpc("CallTool", "OK")
        metrics.dropped_progress.inc()
        text = await self.scraped(metrics)
        labels = 'carriage="json",era="legacy",method="tools/call",outcome="ok"'
        assert f"naru_gateway_requests_total{{{labels}}} 2.0" in text
        assert 'naru_gateway_request_seconds_bucket{le="0.005",method="tools/call"} 2.0' in text
        assert 'naru_gateway_request_seconds_bucket{le="0.0025",method="tools/call"} 0.0' in text
        assert "naru_gateway_in_flight 3.0" in text
        assert 'naru_gateway_grpc_total{code="OK",method="CallTool"} 1.0' in text
        assert "naru_gateway_progress_dropped_total 1.0" in text
        assert "process_resident_memory_bytes" in text

    def test_two_gateways_do_not_share_them(self):
        first, second = Metrics(lambda: 0), Metrics(lambda: 0)
        first.rpc("CallTool", "OK")
        assert second.registry.get_sample_value("naru_gateway_grpc_total", {"method": "CallTool", "code": "OK"}) is None
