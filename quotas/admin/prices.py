"""Prices: the book in force as a list, and a form that makes the next book."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Max, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from quotas.admin_base import ReadOnlyAdmin, actor_of
from quotas.display import credits_of
from quotas.errors import Refusal
from quotas.models import AMOUNT_MAX, Price
from quotas.prices import PriceTable, set_price


class PriceForm(forms.Form):
    """Prices of one model; a kind left empty keeps its price."""

    model = forms.CharField(max_length=120)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for kind in Price.Kind.values:
            self.fields[kind] = forms.IntegerField(
                required=False,
                min_value=0,
                max_value=AMOUNT_MAX,
                label=f"{kind.capitalize()} tokens",
                help_text="Micro-units for a million tokens.",
            )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not self.errors and not self.prices:
            raise forms.ValidationError("Give a price for at least one kind of token.")
        return cleaned

    @property
    def prices(self) -> dict[str, int]:
        given = {kind: self.cleaned_data.get(kind) for kind in Price.Kind.values}
        return {kind: amount for kind, amount in given.items() if amount is not None}


@admin.register(Price)
class PriceAdmin(ReadOnlyAdmin):
    change_list_template = "admin/quotas/price/change_list.html"
    list_display = ["model", "kind", "credits_a_million", "book"]
    list_filter = ["kind"]
    search_fields = ["model"]
    ordering = ["model", "kind"]

    @admin.display(description="Credits a million tokens")
    def credits_a_million(self, price: Price) -> str:
        return credits_of(price.per_million)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Price]:
        """Show the newest book; the older ones stay for the ledger."""
        newest = Price.objects.aggregate(newest=Max("book"))["newest"]
        return super().get_queryset(request).filter(book=newest).select_related("book")

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.set_price_view)
        return [path("set/", view, name="quotas_price_set"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        may_set = request.user.has_perm("quotas.add_price")
        return super().changelist_view(request, {**(extra_context or {}), "may_set": may_set})

    def set_price_view(self, request: HttpRequest) -> HttpResponse:
        """Make a new price book with one model's prices changed."""
        if not request.user.has_perm("quotas.add_price"):
            raise PermissionDenied
        model = request.GET.get("model", "")
        known = PriceTable.current().prices.get(model, {})
        form = PriceForm(request.POST or None, initial={"model": model, **known})
        if request.method == "POST" and form.is_valid():
            try:
                book = set_price(model=form.cleaned_data["model"], prices=form.prices, actor=actor_of(request))
            except Refusal as refusal:
                form.add_error(None, refusal.message)
            else:
                self.message_user(request, f"Price book {book.version} is in force.", messages.SUCCESS)
                return HttpResponseRedirect(reverse("admin:quotas_price_changelist"))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "form": form,
            "title": "Set prices of a model",
        }
        return TemplateResponse(request, "admin/quotas/price/set.html", context)
