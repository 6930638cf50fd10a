"""Sixteen query shapes of TPC-DS over small drawn tables ``tpcds.sf.<table>``: stars, rollups, windows, sets, pivots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_DAYS, _FIRST_DAY = 5 * 365, 10227  # 1998-01-01
_CATEGORIES = ["Books", "Music", "Home", "Shoes", "Sports", "Women", "Men", "Jewelry"]
_STATES = ["TN", "TX", "CA", "GA", "OH", "NY"]


def tables(scale: float, seed: int = 20261122) -> dict[str, pa.Table]:
    """Facts and dimensions; at 1.0 three million store sales, sorted by date."""
    draw = np.random.default_rng(seed)
    items, customers, stores = max(200, int(18_000 * scale)), max(500, int(100_000 * scale)), 24

    def sales(prefix: str, rows: int, extra: dict[str, Any]) -> pa.Table:
        price, quantity = draw.integers(100, 20_000, rows), draw.integers(1, 100, rows)
        return pa.table(
            {
                f"{prefix}_sold_date_sk": np.sort(draw.integers(0, _DAYS, rows)),
                f"{prefix}_item_sk": draw.integers(0, items, rows),
                f"{prefix}_customer_sk": draw.integers(0, customers, rows),
                f"{prefix}_order_number": np.arange(rows) // 4,
                f"{prefix}_quantity": quantity,
                f"{prefix}_sales_price": price,
                f"{prefix}_ext_sales_price": price * quantity,
                f"{prefix}_net_profit": price * quantity // 7 - 40_000,
                f"{prefix}_coupon_amt": draw.integers(0, 500, rows),
                **extra,
            }
        )

    rows = max(4_000, int(3_000_000 * scale))
    days = np.arange(_DAYS)
    dates = (days + _FIRST_DAY).astype("datetime64[D]")
    months = dates.astype("datetime64[M]").astype(int)
    return {
        "store_sales": sales("ss", rows, {"ss_store_sk": draw.integers(0, stores, rows)}),
        "catalog_sales": sales("cs", rows // 2, {}),
        "web_sales": sales("ws", rows // 4, {}),
        "store_returns": pa.table(
            {
                "sr_returned_date_sk": np.sort(draw.integers(0, _DAYS, rows // 10)),
                "sr_customer_sk": draw.integers(0, customers, rows // 10),
                "sr_store_sk": draw.integers(0, stores, rows // 10),
                "sr_return_amt": draw.integers(100, 50_000, rows // 10),
            }
        ),
        "date_dim": pa.table(
            {
                "d_date_sk": days,
                "d_date": pa.array(dates),
                "d_year": months // 12 + 1970,
                "d_moy": months % 12 + 1,
                "d_dow": (days + 4) % 7,
                "d_month_seq": months,
                "d_day_name": np.array(["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"])[(days + 4) % 7],
            }
        ),
        "item": pa.table(
            {
                "i_item_sk": np.arange(items),
                "i_item_id": [f"ITEM{i // 2:08}" for i in range(items)],
                "i_brand": [f"brand {i % 50}" for i in range(items)],
                "i_class": [f"class {i % 13}" for i in range(items)],
                "i_category": draw.choice(_CATEGORIES, items),
                "i_current_price": draw.integers(50, 10_000, items),
                "i_manager_id": draw.integers(1, 100, items),
            }
        ),
        "store": pa.table(
            {
                "s_store_sk": np.arange(stores),
                "s_store_name": [f"store {i}" for i in range(stores)],
                "s_state": [_STATES[i % len(_STATES)] for i in range(stores)],
            }
        ),
        "customer": pa.table(
            {
                "c_customer_sk": np.arange(customers),
                "c_customer_id": [f"CUST{i:08}" for i in range(customers)],
                "c_last_name": [f"name {i % 500}" for i in range(customers)],
                "c_first_name": [f"first {i % 90}" for i in range(customers)],
                "c_birth_year": draw.integers(1930, 2000, customers),
                "c_address_sk": np.arange(customers) % (customers // 2),
            }
        ),
        "customer_address": pa.table(
            {
                "ca_address_sk": np.arange(customers // 2),
                "ca_state": draw.choice(_STATES, customers // 2),
                "ca_city": [f"city {i % 60}" for i in range(customers // 2)],
                "ca_zip": [f"{i % 99999:05}" for i in range(customers // 2)],
            }
        ),
    }


#: By the number of the TPC-DS query whose shape each has.
QUERIES: dict[int, str] = {
    1: """
with returned as (select sr_customer_sk as c, sr_store_sk as s, sum(sr_return_amt) as total
  from tpcds.sf.store_returns, tpcds.sf.date_dim where sr_returned_date_sk = d_date_sk and d_year = 2000 group by 1, 2)
select c_customer_id from returned r, tpcds.sf.store, tpcds.sf.customer
where r.total > (select avg(total) * 1.2 from returned o where r.s = o.s)
  and s_store_sk = r.s and s_state = 'TN' and r.c = c_customer_sk order by c_customer_id limit 100""",
    3: """
select d_year, i_brand, sum(ss_ext_sales_price) as total
from tpcds.sf.date_dim dt, tpcds.sf.store_sales, tpcds.sf.item
where dt.d_date_sk = ss_sold_date_sk and ss_item_sk = i_item_sk and i_manager_id = 28 and dt.d_moy = 11
group by d_year, i_brand order by d_year, total desc, i_brand limit 100""",
    6: """
select ca_state, count(*) as cnt from tpcds.sf.customer_address a, tpcds.sf.customer c, tpcds.sf.store_sales s,
  tpcds.sf.date_dim d, tpcds.sf.item i
where a.ca_address_sk = c.c_address_sk and c.c_customer_sk = s.ss_customer_sk and s.ss_sold_date_sk = d.d_date_sk
  and s.ss_item_sk = i.i_item_sk
  and d.d_month_seq = (select distinct d_month_seq from tpcds.sf.date_dim where d_year = 2001 and d_moy = 1)
  and i.i_current_price > 1.2 * (select avg(j.i_current_price) from tpcds.sf.item j where j.i_category = i.i_category)
group by ca_state having count(*) >= 10 order by cnt, ca_state""",
    9: """
select case when (select count(*) from tpcds.sf.store_sales where ss_quantity between 1 and 20) > 740
    then (select avg(ss_coupon_amt) from tpcds.sf.store_sales where ss_quantity between 1 and 20)
    else (select avg(ss_net_profit) from tpcds.sf.store_sales where ss_quantity between 1 and 20) end as bucket
from tpcds.sf.store where s_store_sk = 1""",
    10: """
select ca_city, count(*) as cnt from tpcds.sf.customer c, tpcds.sf.customer_address ca
where c.c_address_sk = ca.ca_address_sk and ca_state in ('TX', 'OH')
  and exists (select * from tpcds.sf.store_sales, tpcds.sf.date_dim
    where c.c_customer_sk = ss_customer_sk and ss_sold_date_sk = d_date_sk and d_year = 2002 and d_moy between 1 and 4)
  and (exists (select * from tpcds.sf.web_sales, tpcds.sf.date_dim
      where c.c_customer_sk = ws_customer_sk and ws_sold_date_sk = d_date_sk and d_year = 2002 and d_moy between 1 and 4)
    or exists (select * from tpcds.sf.catalog_sales, tpcds.sf.date_dim
      where c.c_customer_sk = cs_customer_sk and cs_sold_date_sk = d_date_sk and d_year = 2002 and d_moy between 1 and 4))
group by ca_city order by ca_city limit 100""",
    14: """
with cross_items as (select i_item_sk as ss_item_sk from tpcds.sf.item, (
  select i_brand as b, i_class as k from tpcds.sf.store_sales, tpcds.sf.item where ss_item_sk = i_item_sk and ss_quantity < 3
  intersect select i_brand, i_class from tpcds.sf.catalog_sales, tpcds.sf.item where cs_item_sk = i_item_sk and cs_quantity < 3
  intersect select i_brand, i_class from tpcds.sf.web_sales, tpcds.sf.item where ws_item_sk = i_item_sk and ws_quantity < 3)
  where i_brand = b and i_class = k)
select channel, i_class, sum(sales) as total from (
  select 'store' as channel, i_class, ss_quantity * ss_sales_price as sales from tpcds.sf.store_sales, tpcds.sf.item
  where ss_item_sk in (select ss_item_sk from cross_items) and ss_item_sk = i_item_sk and ss_sold_date_sk > 1700
  union all select 'web', i_class, ws_quantity * ws_sales_price from tpcds.sf.web_sales, tpcds.sf.item
  where ws_item_sk in (select ss_item_sk from cross_items) and ws_item_sk = i_item_sk and ws_sold_date_sk > 1700)
group by rollup (channel, i_class) order by channel nulls first, i_class nulls first limit 100""",
    19: """
select i_brand, sum(ss_ext_sales_price) as total
from tpcds.sf.date_dim, tpcds.sf.store_sales, tpcds.sf.item, tpcds.sf.customer, tpcds.sf.customer_address, tpcds.sf.store
where d_date_sk = ss_sold_date_sk and ss_item_sk = i_item_sk and i_manager_id = 8 and d_moy = 11 and d_year = 1998
  and ss_customer_sk = c_customer_sk and c_address_sk = ca_address_sk and substr(ca_zip, 1, 5) <> s_store_name
  and ss_store_sk = s_store_sk group by i_brand order by total desc, i_brand limit 100""",
    27: """
select i_item_id, s_state, grouping(s_state) as g, avg(ss_quantity) as a, avg(ss_coupon_amt) as b
from tpcds.sf.store_sales, tpcds.sf.date_dim, tpcds.sf.store, tpcds.sf.item
where ss_sold_date_sk = d_date_sk and ss_item_sk = i_item_sk and ss_store_sk = s_store_sk and d_year = 2002
  and s_state in ('TN', 'GA') and i_category = 'Books'
group by rollup (i_item_id, s_state) order by i_item_id nulls first, s_state nulls first limit 100""",
    36: """
select sum(ss_net_profit) as profit, i_category, i_class, grouping(i_category) + grouping(i_class) as lochierarchy,
  rank() over (partition by grouping(i_category) + grouping(i_class),
    case when grouping(i_class) = 0 then i_category end order by sum(ss_net_profit)) as place
from tpcds.sf.store_sales, tpcds.sf.date_dim d1, tpcds.sf.item, tpcds.sf.store
where d1.d_year = 2001 and d1.d_date_sk = ss_sold_date_sk and i_item_sk = ss_item_sk and s_store_sk = ss_store_sk
group by rollup (i_category, i_class) order by lochierarchy desc, i_category nulls first, place, i_class nulls first""",
    38: """
select count(*) as n from (
  select distinct c_last_name, c_first_name, d_date from tpcds.sf.store_sales, tpcds.sf.date_dim, tpcds.sf.customer
  where ss_sold_date_sk = d_date_sk and ss_customer_sk = c_customer_sk and d_month_seq between 360 and 371
  intersect select distinct c_last_name, c_first_name, d_date from tpcds.sf.catalog_sales, tpcds.sf.date_dim, tpcds.sf.customer
  where cs_sold_date_sk = d_date_sk and cs_customer_sk = c_customer_sk and d_month_seq between 360 and 371)""",
    43: """
select s_store_name, sum(case when d_day_name = 'Sun' then ss_sales_price end) as sun,
  sum(case when d_day_name = 'Mon' then ss_sales_price end) as mon, sum(case when d_day_name = 'Sat' then ss_sales_price end) as sat
from tpcds.sf.date_dim, tpcds.sf.store_sales, tpcds.sf.store
where d_date_sk = ss_sold_date_sk and s_store_sk = ss_store_sk and s_state = 'CA' and d_year = 2000
group by s_store_name order by s_store_name""",
    51: """
with web as (select ws_item_sk as item_sk, d_date, sum(sum(ws_sales_price)) over (partition by ws_item_sk order by d_date
    rows between unbounded preceding and current row) as cume
  from tpcds.sf.web_sales, tpcds.sf.date_dim where ws_sold_date_sk = d_date_sk and d_month_seq = 365 group by 1, 2),
store as (select ss_item_sk as item_sk, d_date, sum(sum(ss_sales_price)) over (partition by ss_item_sk order by d_date
    rows between unbounded preceding and current row) as cume
  from tpcds.sf.store_sales, tpcds.sf.date_dim where ss_sold_date_sk = d_date_sk and d_month_seq = 365 group by 1, 2)
select coalesce(w.item_sk, s.item_sk) as i, coalesce(w.d_date, s.d_date) as d, w.cume as wc, s.cume as sc
from web w full outer join store s on w.item_sk = s.item_sk and w.d_date = s.d_date order by i, d limit 100""",
    67: """
select * from (select i_category, i_class, d_year, s_store_name, sum(ss_sales_price * ss_quantity) as total,
    rank() over (partition by i_category order by sum(ss_sales_price * ss_quantity) desc) as place
  from tpcds.sf.store_sales, tpcds.sf.date_dim, tpcds.sf.store, tpcds.sf.item
  where ss_sold_date_sk = d_date_sk and ss_item_sk = i_item_sk and ss_store_sk = s_store_sk and d_month_seq between 360 and 371
  group by rollup (i_category, i_class, d_year, s_store_name)) ranked
where place <= 5 order by i_category nulls first, place, total, i_class nulls first, d_year, s_store_name nulls first""",
    87: """
select count(*) as n from (
  (select distinct ss_customer_sk as c, d_date from tpcds.sf.store_sales, tpcds.sf.date_dim
    where ss_sold_date_sk = d_date_sk and d_year = 1999)
  except (select distinct cs_customer_sk, d_date from tpcds.sf.catalog_sales, tpcds.sf.date_dim
    where cs_sold_date_sk = d_date_sk and d_year = 1999))""",
    88: """
select * from (select count(*) as h1 from tpcds.sf.store_sales, tpcds.sf.store
    where ss_store_sk = s_store_sk and ss_quantity between 1 and 10 and s_store_name = 'store 3') a,
  (select count(*) as h2 from tpcds.sf.store_sales, tpcds.sf.store
    where ss_store_sk = s_store_sk and ss_quantity between 11 and 20 and s_store_name = 'store 3') b,
  (select count(*) as h3 from tpcds.sf.store_sales where ss_sold_date_sk between 100 and 120) c""",
    97: """
with s as (select ss_customer_sk as c, ss_item_sk as i from tpcds.sf.store_sales where ss_sold_date_sk between 300 and 330 group by 1, 2),
  k as (select cs_customer_sk as c, cs_item_sk as i from tpcds.sf.catalog_sales where cs_sold_date_sk between 300 and 330 group by 1, 2)
select sum(case when s.c is not null and k.c is null then 1 else 0 end) as store_only,
  sum(case when s.c is null and k.c is not null then 1 else 0 end) as catalog_only,
  sum(case when s.c is not null and k.c is not null then 1 else 0 end) as both_of_them
from s full outer join k on s.c = k.c and s.i = k.i""",
}
